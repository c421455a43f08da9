"""Chat templates run in a sandbox; what they cannot do is one sentence."""

import pytest

from edgewise.chat import Message, prompt_ids, render
from edgewise.edge.scripted import ByteTokenizer
from edgewise.errors import ModelError

TURNS = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?")]


def templated(template: str | None) -> ByteTokenizer:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_template_sees_messages_and_the_generation_prompt() -> None:
    template = (
        "{%- for m in messages %}<{{ m.role }}>{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    expected = "<system>Be brief.\n<user>Hi\n<assistant>Yes?\n<assistant>"
    assert render(templated(template), TURNS) == expected


def test_without_a_template_the_contents_are_joined() -> None:
    assert bytes(prompt_ids(templated(None), TURNS[1:])) == b"Hi\n\nYes?"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system messages') }}",
        "{{ undefined.attribute }}",
        "{% for %}",
        "{{ range(10 ** 9) | list }}",
        "x" * 200_000,
    ],
)
def test_what_a_template_must_not_do_is_refused(template: str) -> None:
    with pytest.raises(ModelError, match="--no-template"):
        render(templated(template), TURNS)
