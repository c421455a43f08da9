"""The frozen question set of the bundled pair, and how an answer is graded."""

import gzip
import re
from importlib.resources import files
from typing import Literal

import msgspec

Split = Literal["train", "calibration", "test"]


class Question(msgspec.Struct, frozen=True):
    """`prompt` is the user's message; `reference` a whole right answer."""

    id: str
    family: str
    split: Split
    prompt: str
    answer: str
    reference: str
    choices: tuple[str, ...] | None = None
    label: str | None = None


def pocketqa(split: Split) -> list[Question]:
    """The bundled questions of one split, the families alternating."""
    packed = (files("edgewise") / "bundled" / "pocketqa.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines()
    found = [msgspec.json.decode(line, type=Question) for line in lines]
    kept = [question for question in found if question.split == split]
    rank: dict[str, int] = {}
    order: list[tuple[int, Question]] = []
    for question in kept:
        rank[question.family] = rank.get(question.family, -1) + 1
        order.append((rank[question.family], question))
    return [question for _, question in sorted(order, key=lambda pair: pair[0])]


def is_right(question: Question, text: str) -> bool:
    """Whether an answer is right: by its choice, or by the number it ends with."""
    if question.choices is None:
        return _number(text) == question.answer
    return extract_choice(text, question.choices) == question.answer


def extract_choice(text: str, choices: tuple[str, ...]) -> str | None:
    """The choice an answer names, in the order of arXiv 2504.07878.

    A choice's text within 50 characters after "Therefore"; a capital letter there; the first
    "(x)"; a letter in the first 15 characters; a choice's text in the first 20.
    """
    at = text.find("Therefore")
    near = text[at + len("Therefore") :][:50] if at >= 0 else ""
    letters = "abcdefghij"[: len(choices)]
    return (
        _first_named(near, choices)
        or _by_letter(re.search(rf"\b([{letters.upper()}])\b", near), choices)
        or _by_letter(re.search(rf"\(([{letters}])\)", text, re.IGNORECASE), choices)
        or _by_letter(re.search(rf"\b([{letters.upper()}])\b", text[:15]), choices)
        or _first_named(text[:20], choices)
    )


def _first_named(text: str, choices: tuple[str, ...]) -> str | None:
    """The choice that appears first; of two at one place the longer."""
    found = [
        (match.start(), -len(choice), choice)
        for choice in choices
        if (match := re.search(rf"\b{re.escape(choice)}\b", text, re.IGNORECASE))
    ]
    return min(found)[2] if found else None


def _by_letter(match: re.Match[str] | None, choices: tuple[str, ...]) -> str | None:
    return choices["abcdefghij".index(match[1].lower())] if match else None


def _number(text: str) -> str | None:
    """The number after "answer is", else the last one."""
    stated = re.search(r"answer is (-?\d+)", text)
    if stated:
        return stated[1]
    numbers = re.findall(r"-?\d+", text)
    return numbers[-1] if numbers else None
