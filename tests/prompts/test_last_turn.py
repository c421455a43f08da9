"""Where the last user message of a prompt begins, by its ids."""

import pytest

from edgewise.prompts import Message, Prompt, last_turn
from edgewise.testing.scripted_edge import ByteTokenizer

LONG = "".join(f"why {number} " for number in range(100))


def begins(text: str, *users: str) -> int:
    messages = tuple(Message("user", user) for user in users)
    prompt = Prompt(tuple(text.encode()), (Message("system", "brief"), *messages))
    return last_turn(ByteTokenizer(), prompt)


@pytest.mark.parametrize("said", ["Hello there", LONG, "  spaced out\n", "naïve 🙂"])
def test_it_is_found(said: str) -> None:
    before = "<system>brief<user>Hello there, is a naïve 🙂 spaced out<assistant>no<user>"
    at = begins(f"{before}{said.strip()}<assistant>", "Hello there", said)
    assert abs(at - len(before.encode())) <= 1


@pytest.mark.parametrize("said", ["", " ", "is", "changed by the template", LONG])
def test_what_is_not_there_is_not_found(said: str) -> None:
    assert begins("<user>Something else<assistant>", said) == 0


def test_prompts_of_no_conversation_have_none() -> None:
    assert last_turn(ByteTokenizer(), Prompt((1, 2, 3))) == 0
    assert last_turn(ByteTokenizer(), Prompt((), (Message("user", "a"),))) == 0
    assert last_turn(ByteTokenizer(), Prompt((1,), (Message("system", "a"),))) == 0
