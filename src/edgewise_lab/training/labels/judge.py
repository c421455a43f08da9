"""The cloud model as a judge: whether two ways to go on with an answer say the same."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.prompts import Message, prompt_ids
from edgewise_lab.rollouts.base import Continuation, Prefix
from edgewise_lab.training.labels.base import Rollout, Trial

VERDICT = 8
"""Tokens that the judge has for its answer."""

PASSED = 10
"""Of the twelve pairs of the trial, how many must be told rightly; a coin does it in 2%."""

_ASKED = """\
Two drafts of an answer begin alike and then differ.

Question:
{question}

Both drafts begin:
{begun}

The first goes on:
{first}

The second goes on:
{second}

Do both say the same here? They may differ in wording, but not in facts, numbers, reasoning or \
what follows from them. Answer with one word, yes or no."""

_ANSWER = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)|[。！？]|\n")
_SUMS = "A shelf holds 12 cups. 5 more are put there. How many are there?"
_CITY = "What is the capital of France?"
_RAIN = "Why should I take an umbrella today?"


class Drafts(NamedTuple):
    """Two ways to go on after `begun`."""

    question: str
    begun: str
    first: str
    second: str


TRIAL: Sequence[tuple[Drafts, bool]] = (
    (Drafts(_SUMS, "", "There are 12 + 5 = 17 cups.", "12 + 5 makes 17 cups."), True),
    (Drafts(_SUMS, "", "There are 12 + 5 = 17 cups.", "There are 12 - 5 = 7 cups."), False),
    (Drafts(_SUMS, "We add 5 to 12.", "That is 17.", "That is 18."), False),
    (Drafts(_SUMS, "We add 5 to 12.", "That is 17.", "It comes to 17."), True),
    (Drafts(_CITY, "", "The capital of France is Paris.", "France's capital is Paris."), True),
    (Drafts(_CITY, "", "The capital of France is Paris.", "The capital of France is Rome."), False),
    (Drafts(_CITY, "France is in Europe.", "Its capital is Paris.", "Paris is its capital."), True),
    (Drafts(_CITY, "France is in Europe.", "Its capital is Paris.", "It has no capital."), False),
    (Drafts(_RAIN, "", "It will rain today.", "Rain is expected today."), True),
    (Drafts(_RAIN, "", "It will rain today.", "It will be dry today."), False),
    (Drafts(_RAIN, "Look outside.", "The sky is full of clouds.", "The sky is cloudy."), True),
    (Drafts(_RAIN, "Look outside.", "The sky is full of clouds.", "The sky is clear."), False),
)


def asked(tokenizer: Tokenizer, pair: Drafts) -> Rollout:
    """The question to the judge, through the chat template that every prompt goes through."""
    filled = {name: text or "(nothing)" for name, text in pair._asdict().items()}
    text = _ASKED.format(**filled)
    ids = prompt_ids(tokenizer, [Message("user", text)])
    return Rollout("cloud", Prefix(tuple(ids), VERDICT))


def same(tokenizer: Tokenizer, reply: Continuation) -> bool | None:
    """What the judge said; None where its answer begins with neither yes nor no."""
    found = _ANSWER.match(said(tokenizer, reply))
    return None if found is None else found[1].lower() == "yes"


def said(tokenizer: Tokenizer, reply: Continuation) -> str:
    """The judge's answer."""
    return b"".join(map(tokenizer.piece, reply.ids)).decode("utf-8", "replace").strip()


def trial(tokenizer: Tokenizer) -> Trial:
    """Twelve pairs on which there are no two opinions.

    Raises `UsageError` for a model that tells fewer than `PASSED` of them rightly.
    """
    replies = yield [asked(tokenizer, pair) for pair, _ in TRIAL]
    told = [same(tokenizer, reply) for reply in replies]
    right = sum(one is known for one, (_, known) in zip(told, TRIAL, strict=True))
    if right < PASSED:
        unclear = told.count(None)
        raise UsageError(
            f"The cloud model is no judge: it tells {right} of {len(TRIAL)} plain pairs of "
            f"sentences rightly apart, and answers {unclear} with neither yes nor no (it begins "
            f"{said(tokenizer, replies[0])!r})",
            hint="let the outcome judge, or choose another label",
            setting="judge",
        )


def sentences(begun: str, first: str, second: str) -> tuple[str, str, str]:
    """From two texts that begin with `begun`: what is before the sentence they part in, and both.

    A sentence ends with `.`, `!` or `?` before white space, with a line's end or with the text. So
    that does not depend on the vocabulary, and "3.5" is one number.
    """
    shared = len(begun.rstrip("\ufffd"))  # a character that is cut there
    begins = [match.end() for match in _END.finditer(first) if match.end() <= shared]
    start = begins[-1] if begins else 0
    return first[:start].strip(), _one(first, start, shared), _one(second, start, shared)


def _one(text: str, start: int, parted: int) -> str:
    """The sentence that begins at `start` and goes on at `parted`."""
    for match in _END.finditer(text, start):
        if match.end() > parted and text[start : match.end()].strip():
            return text[start : match.end()].strip()
    return text[start:].strip()
