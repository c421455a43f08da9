"""Whether an answer is right: as the paper's extraction finds it, and by a stricter reading."""

import re

from edgewise.evaluation.tasks.base import LETTERS, Question

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def is_right(question: Question, text: str) -> bool:
    """Graded leniently: a choice by the paper's extraction, a number by the last one named."""
    match question.check:
        case "choice":
            assert question.choices is not None
            return extract_choice(text, question.choices) == question.answer
        case "number":
            return _plain(extract_number(text)) == _plain(question.answer)
        case "exact":
            return text.strip() == question.answer.strip()
        case "regex":
            return re.search(question.answer, text) is not None


def is_strictly_right(question: Question, text: str) -> bool:
    """Graded as asked for: one conclusion, in the format that the prompt wants, and right.

    A choice's text and its letter must both be named; exact and regex have no other reading.
    """
    if question.check not in ("choice", "number"):
        return is_right(question, text)
    concluded = re.findall(r"Therefore, the answer is (.+?)\s*\.?\s*$", text, re.MULTILINE)
    if len(concluded) != 1:
        return False
    if question.check == "number":
        said = re.fullmatch(rf"\$?({_NUMBER})", concluded[0])
        return said is not None and _plain(said[1]) == _plain(question.answer)
    assert question.choices is not None
    label = LETTERS[question.choices.index(question.answer)]
    return concluded[0].lower() == f"{question.answer} ({label})".lower()


def extract_choice(text: str, choices: tuple[str, ...]) -> str | None:
    """The choice an answer names, in the order of arXiv 2504.07878.

    A choice's text within 50 characters after "Therefore"; a capital letter there; the first
    "(x)"; a letter in the first 15 characters; a choice's text in the first 20.
    """
    at = text.find("Therefore")
    near = text[at + len("Therefore") :][:50] if at >= 0 else ""
    letters = LETTERS[: len(choices)]
    return (
        _first_named(near, choices)
        or _by_letter(re.search(rf"\b([{letters.upper()}])\b", near), choices)
        or _by_letter(re.search(rf"\(([{letters}])\)", text, re.IGNORECASE), choices)
        or _by_letter(re.search(rf"\b([{letters.upper()}])\b", text[:15]), choices)
        or _first_named(text[:20], choices)
    )


def extract_number(text: str) -> str | None:
    """The number after "answer is", else the last one."""
    stated = re.search(rf"answer is \$?({_NUMBER})", text)
    if stated:
        return stated[1]
    numbers = re.findall(_NUMBER, text)
    return numbers[-1] if numbers else None


def _first_named(text: str, choices: tuple[str, ...]) -> str | None:
    """The choice that appears first; of two at one place the longer."""
    found = [
        (match.start(), -len(choice), choice)
        for choice in choices
        if (match := re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE))
    ]
    return min(found)[2] if found else None


def _by_letter(match: re.Match[str] | None, choices: tuple[str, ...]) -> str | None:
    return choices[LETTERS.index(match[1].lower())] if match else None


def _plain(number: str | None) -> str | None:
    """Without thousands separators and a zero fraction."""
    return None if number is None else re.sub(r"\.0+$", "", number.replace(",", ""))
