"""Grading: whether an answer is right, leniently (in any format) or strictly (as requested).

A prompt that contains "Answer: X" is in the *chat form*: module `conclusions` finds what the reply
concludes. Any other prompt is in the *paper's form*: conclusions are found as in arXiv 2504.07878.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from edgewise_lab.evaluation.tasks import conclusions, programs
from edgewise_lab.evaluation.tasks.base import LETTERS, Grading, Question, Task

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_OPERANDS = r"(?<!\\)\([^()=]{0,99}\d%?(?:\s*[-+*x×·÷−]\s*|\s+/\s+)\$?\d[^()=]{0,99}\)\W*\Z"
_RESULT = r"(?m)(?:(?<=\bis )|(?<=[:=*] )|^)\((\d+\s*/\s*\d+)\)"
_LABEL = re.compile(r"\b[a-z][.):]", re.IGNORECASE)


@cache
def grader() -> str:
    """Return a digest of the grading code in hex; if it differs, outcomes are graded again."""
    sources = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def suited(answer: str, choices: Sequence[str] | None) -> Grading:
    """Return the default check: "choice" with choices, "number" for a number, else "contains"."""
    if choices:
        return "choice"
    return "number" if re.fullmatch(rf"\$?{_NUMBER}", answer.strip()) else "contains"


def is_right(question: Question, text: str) -> bool:
    """Whether a reply is right by lenient grading; False if nobody knows or a person must grade it.

    Raises `UsageError` if the question's regular expression or schema takes too long, or the
    process for a reply's code does not start.
    """
    if not question.known:
        return False
    match question.check:
        case "choice":
            return named_choice(question, text) == question.answer
        case "number":
            return named_number(question, text) == _number(question)
        case "exact":
            return text.strip() == question.answer.strip()
        case "regex":
            return programs.matches(question, text)
        case "code":
            return programs.passes(question, text)
        case "json":
            return programs.fits(question, text)
        case "read":
            return False
        case "contains":
            wanted = content_words(question.answer)
            return wanted <= content_words(text) if wanted else question.answer in text
        case "words":
            return overlap(question, question.answer, text) >= AGREES


def is_strictly_right(question: Question, text: str) -> bool:
    """Whether a reply is right by strict grading: the `reference`, or in the requested format.

    In the chat form the conclusion is the last line, in the paper's it follows "Therefore, the
    answer is". If the prompt lists choices with letters, the paper's form requires text and letter,
    the chat form the letter; otherwise both require the text. Raises as `is_right` does.
    """
    if not question.known:
        return False
    if question.reference and text.strip() == question.reference:
        return True
    if question.check in ("contains", "words"):
        return overlap(question, question.answer, text) == 1
    if question.check in ("code", "json"):
        program = programs.passes if question.check == "code" else programs.fits
        return program(question, text, strict=True)
    if question.check not in ("choice", "number"):
        return is_right(question, text)
    if _is_chat(question):
        return _says_answer(question, text)
    concluded = re.findall(r"Therefore, the answer is (.+?)\s*\.?\s*$", text, re.MULTILINE)
    if len(concluded) != 1:
        return False
    if question.check == "number":
        said = re.fullmatch(rf"\$?({_NUMBER})", concluded[0])
        return said is not None and _plain(said[1]) == _plain(question.answer)
    letter = _letter(question)
    named = f"{question.answer} ({letter})" if letter else question.answer
    return concluded[0].lower() == named.lower()


def _is_chat(question: Question) -> bool:
    return re.search(r"\bAnswer: ?\w", question.prompt) is not None


def _letter(question: Question) -> str | None:
    """Return the right choice's letter if the prompt lists choices with letters."""
    assert question.choices is not None
    letter = LETTERS[question.choices.index(question.answer)]
    listed = re.search(_item(letter, question.answer), question.prompt, re.IGNORECASE)
    return letter if listed else None


def _says_answer(question: Question, text: str) -> bool:
    """Whether the last line of a reply in the chat form is the right conclusion."""
    if question.check == "number":
        number = conclusions.says_number(text)
        return number is not None and number == conclusions.number_from(question.answer)
    letter = _letter(question)
    return conclusions.says_choice(text, question.answer, letter and letter.upper())


def named_choice(question: Question, text: str) -> str | None:
    """Return the text of the choice that a reply concludes with, or None."""
    assert question.choices is not None
    if not _is_chat(question):
        return extract_choice(text, question.choices)
    if question.known and _says_answer(question, text):
        return question.answer
    return conclusions.choice_in(text, question.choices)


def named_number(question: Question, text: str) -> str | None:
    """Return the number a reply concludes with, or None. In the chat form 2.5 is "5/2"."""
    chat = _is_chat(question)
    # "(6 x 7)" is a calculation, no result; "is (3 / 4)" is a result in the chat form.
    text = re.sub(_OPERANDS, "", re.sub(_RESULT, r"\1", text) if chat else text)
    if not chat:
        return _plain(extract_number(text))
    said = conclusions.says_number(text)
    number = conclusions.number_in(text) if said is None else said
    return None if number is None else str(number)


def _number(question: Question) -> str | None:
    answer = question.answer
    return str(conclusions.number_from(answer)) if _is_chat(question) else _plain(answer)


def extract_choice(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that an answer names, found as in arXiv 2504.07878, or None.

    Not counted are a list that repeats the choices, a letter before a lower-case phrase other than
    its choice ("A. whole job"), and a letter that is a word ("A job").
    """
    return next(_named(_without_lists(text, choices), choices), None)


def extract_number(text: str) -> str | None:
    """Return the number after "answer is", or else the last one, as written ("1,000"), or None."""
    stated = re.search(rf"answer is \$?({_NUMBER})", text)
    if stated:
        return stated[1]
    numbers = re.findall(_NUMBER, text)
    return numbers[-1] if numbers else None


def _named(text: str, choices: tuple[str, ...]) -> Iterator[str]:
    """Yield the choices at the places where the paper's grading looks for one, in its order."""
    after = text.find("Therefore")
    start = after + len("Therefore") if after >= 0 else len(text)
    yield from _first_named(text, start, start + 50, choices)
    yield from _by_letter(text, start, start + 50, choices)
    bracketed = re.search(rf"\(([{LETTERS[: len(choices)]}])\)", text, re.IGNORECASE)
    if bracketed:
        yield choices[LETTERS.index(bracketed[1].lower())]
    yield from _by_letter(text, 0, 15, choices)
    yield from _first_named(text, 0, 20, choices)


def _first_named(text: str, start: int, end: int, choices: tuple[str, ...]) -> Iterator[str]:
    """The choice whose text appears first; of two at one place the longer."""
    found = [
        (match.start(), -len(choice), choice)
        for choice in choices
        if (match := re.search(_own(choice), text[start:end], re.IGNORECASE))
    ]
    if found:
        yield min(found)[-1]


def _by_letter(text: str, start: int, end: int, choices: tuple[str, ...]) -> Iterator[str]:
    """The choice whose capital letter appears first as such."""
    capitals = LETTERS[: len(choices)].upper()
    for match in re.compile(rf"\b([{capitals}])\b").finditer(text, start, end):
        choice = choices[LETTERS.index(match[1].lower())]
        if _is_name(match[1], text[match.end() :], choice):
            yield choice
            return


def _is_name(letter: str, rest: str, choice: str) -> bool:
    """Whether a letter names its choice where `rest` follows it."""
    labelled = re.match(r"[.):]\s*(?=[^\W_])", rest)
    if labelled:
        # A capital begins a new sentence, which is not the label's phrase.
        phrase = rest[labelled.end() :]
        return phrase[0].isupper() or re.match(_own(choice), phrase, re.IGNORECASE) is not None
    word = re.match(r"\s+([a-z]\w*)", rest)
    return not word or letter not in "AI" or word[1] in ("is", "it", "because", "since", "as")


def _without_lists(text: str, choices: tuple[str, ...]) -> str:
    """Return `text` with spaces for every list of choices, each after its letter."""
    if len(_LABEL.findall(text)) < 2:  # nearly always; a pattern of the choices is slow to make
        return text
    one = "|".join(_item(letter, c) for letter, c in zip(LETTERS, choices, strict=False))
    entry = rf"\(?(?:{one})"
    several = rf"{entry}(?:[\s,;.]*(?:(?:or|and)\s+)?{entry})+"
    return re.sub(several, lambda match: " " * len(match[0]), text, flags=re.IGNORECASE)


def _item(letter: str, choice: str) -> str:
    return rf"\b{letter}[.):]\s*{_own(choice)}"


def _own(choice: str) -> str:
    return rf"(?<!\w){re.escape(choice)}(?!\w)"


def _plain(number: str | None) -> str | None:
    """Return the number without a leading "$", thousands separators and a decimal's last zeros."""
    plain = None if number is None else re.sub(r"^\$|,", "", number.strip())
    return plain.rstrip("0").rstrip(".") if plain and "." in plain else plain


AGREES = 0.5
"""Smallest `overlap` (Jaccard index of content words) at which two texts agree."""

_WORDS = re.compile(r"\d[\d.,]*\d|\d|[^\W\d_]+")
_FUNCTION_WORDS = """
a about all also an and any are as at be because been but by can could did do does for from
had has have he her his how i if in into is it its just me more my of on one or our out she
should so some than that the their them then there these they this to too up us very was we
were what when where which while who why will with would you your
"""


def content_words(text: str) -> frozenset[str]:
    """Return the numbers and lower-case words of a text, without function words such as "the"."""
    found = (word.replace(",", "").casefold() for word in _WORDS.findall(text))
    return frozenset(found).difference(_FUNCTION_WORDS.split())


def overlap(question: Question, one: str, other: str) -> float:
    """Return the Jaccard index (0 to 1) of the content words of two replies to a question.

    Words of the conversation are left out, unless that leaves one of the replies without a word.
    """
    asked, first, second = map(content_words, (question.text, one, other))
    if first - asked and second - asked:
        first, second = first - asked, second - asked
    return len(first & second) / len(first | second) if first | second else 1.0


def agreeing(question: Question, reply: str) -> Question:
    """Return the question with what the cloud's `reply` concludes as answer, if it has none."""
    if question.known:
        return question
    if question.choices and (choice := named_choice(question, reply)):
        return replace(question, answer=choice, check="choice", known=True)
    if question.check == "number" and (number := named_number(question, reply)):
        return replace(question, answer=number, known=True)
    return replace(question, answer=reply, check="words", known=True)


def agreeing_task(task: Task, replies: Mapping[str, str]) -> Task:
    """Return the task with the cloud's `replies` (by question id) in place of unknown answers."""
    questions = tuple(agreeing(question, replies[question.id]) for question in task.questions)
    return replace(task, questions=questions)
