"""What every family's questions are made of: choices, completions, styles, and what is reserved."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from pocket import frames
from pocket.frames import say

Family = Literal["facts", "two-hop", "analogy", "each", "steps"]
Style = Literal["explain", "short", "notes"]
Check = Literal["choice", "number", "regex"]

CHOICES = 5
RESERVED_IN_256 = 16  # one prompt in sixteen is never trained on
ENDING = "Answer and Reasoning:"


@dataclass(frozen=True)
class Question:
    """One question: `prompt` is the user's message, before the chat template.

    `answer` is the right choice, the number, or the pattern that a free text must match; `about`
    are the subjects whose facts it takes.
    """

    family: Family
    style: Style
    prompt: str
    answer: str
    reference: str
    check: Check
    choices: tuple[str, ...] | None = None
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wording:
    """Which wordings a draw may use."""

    styles: tuple[Style, ...] = ("explain", "short", "notes")
    which: frames.Which = "all"

    def asked(self, asked: Sequence[str], rng: Random, **words: object) -> str:
        """A question in one of the frames that this wording has."""
        return say(frames.asked(asked, self.which), rng, **words)

    def cue(self, style: str, rng: Random) -> str:
        """The sentence that asks for a style."""
        return self.asked(frames.CUES[style], rng)


def reserved(prompt: str) -> bool:
    """Whether a prompt is kept out of training; decided by its SHA-256, so anyone can check it."""
    return hashlib.sha256(prompt.encode()).digest()[0] < RESERVED_IN_256


def joined(*parts: str) -> str:
    """The parts that say something, a space between them."""
    return " ".join(" ".join(parts).split())


def listed(words: Sequence[str]) -> str:
    """`one, two and three`."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def chosen(
    family: Family,
    style: Style,
    asks: str,
    choices: Sequence[str],
    answer: str,
    told: str,
    cue: str,
    rng: Random,
    about: tuple[str, ...],
) -> Question:
    """A question of five choices, which bear no letters."""
    return Question(
        family=family,
        style=style,
        prompt=f"Question: {asks} Choices: {', '.join(choices)}. {cue} {ENDING}",
        answer=answer,
        reference=framed(told, f"Therefore, the answer is {answer}.", style, rng),
        check="choice",
        choices=tuple(choices),
        about=about,
    )


def numbered(
    family: Family,
    style: Style,
    asks: str,
    number: int,
    told: str,
    cue: str,
    rng: Random,
    about: tuple[str, ...] = (),
) -> Question:
    """A question whose answer is a number."""
    return Question(
        family=family,
        style=style,
        prompt=f"Question: {asks} {cue} {ENDING}",
        answer=str(number),
        reference=framed(told, f"Therefore, the answer is {number}.", style, rng),
        check="number",
        about=about,
    )


def framed(told: str, conclusion: str, style: Style, rng: Random) -> str:
    """What is told between words that do not matter; only explanations have such."""
    if style != "explain":
        return joined(told, conclusion)
    return joined(say(frames.OPENERS, rng), told, say(frames.CLOSERS, rng), conclusion)
