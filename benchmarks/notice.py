"""Which questions the bundled pair says it was never taught: `python -m benchmarks.notice`.

    python -m benchmarks.notice --commonsenseqa dev_rand_split.jsonl --gsm8k test.jsonl

Counts what is noticed of all splits of pocketqa, and of published files that are given, bare and
in the form of pocketqa's questions. Then test questions with choices or sums in wordings that lack
something: how many are noticed, how often the pair is right, and how often its answer names the
right one at all. It answers greedily, each question as a conversation of its own. Prints Markdown.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.progress import track

from benchmarks.markdown import line
from edgewise import Pair
from edgewise.prompts.familiar import familiar
from edgewise_lab.evaluation.tasks.base import Question, Split
from edgewise_lab.evaluation.tasks.grading import is_right
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.evaluation.tasks.pocketqa import MAX_TOKENS, pocketqa

QUESTION, CHOICES, ENDING = "Question: ", " Choices: ", " Answer and Reasoning:"
STYLES = ("Come to the point.", "Show every sum.")
"""Of an answer with choices, and of one with sums."""

PATIENT = 600.0
"""Seconds that a consult may take: no answer may depend on how busy the machine is."""


def bare(question: Question) -> str:
    """What is asked: no choices, no style, no form of the answer."""
    told = question.prompt.removeprefix(QUESTION).partition(CHOICES)[0]
    told = told.partition(" Please format your response")[0].removesuffix(ENDING)
    # A question mark ends what pocketqa asks; a style is the sentence behind it.
    return re.sub(r"\? [^.?!]+\.$", "?", told)


def in_its_form(question: Question) -> str:
    """As pocketqa would ask it."""
    choices = question.choices
    listed = f"{CHOICES}{', '.join(choices)}." if choices else ""
    return f"{QUESTION}{bare(question)}{listed} {STYLES[not choices]}{ENDING}"


def as_it_is(question: Question) -> str:
    return question.prompt


WORDINGS: dict[str, Callable[[Question], str]] = {
    "as they are": as_it_is,
    "without the ending": lambda q: q.prompt.removesuffix(ENDING),
    'without "Question:"': lambda q: q.prompt.removeprefix(QUESTION),
    "without choices, style and form": bare,
    "without punctuation": lambda q: re.sub(r"[?.,:]", "", q.prompt),
    "in lower case": lambda q: q.prompt.lower(),
}


def noticed(questions: Sequence[Question], worded: Callable[[Question], str]) -> int:
    """How many are not worded as the pair's training is."""
    known = familiar()
    return sum(not known.knows(worded(question)) for question in questions)


def named(question: Question, text: str) -> bool:
    """Whether the right choice or number stands anywhere, concluded from or not."""
    own = rf"(?<!\w){re.escape(question.answer)}(?!\w)"
    return re.search(own, text, re.IGNORECASE) is not None


def counts(files: dict[str, Path | None]) -> list[str]:
    """The first table: pocketqa's splits, and each published task that a file is there for."""
    lines = line(["questions", "noticed", "of"], head=True)
    for split in get_args(Split):
        asked = pocketqa(split).questions
        lines += line([f"pocketqa, {split}", f"{noticed(asked, as_it_is):,}", f"{len(asked):,}"])
    for name, file in files.items():
        if file is not None:
            asked = open_task(name, data=file).questions
            for told, worded in (("bare", bare), ("in pocketqa's form", in_its_form)):
                cells = [f"{name}, {told}", f"{noticed(asked, worded):,}", f"{len(asked):,}"]
                lines += line(cells)
    return lines


def wordings(asked: Sequence[Question], share: float) -> list[str]:
    """The second table."""
    lines = line(["wording", "noticed, %", "right, %", "named, %"], head=True)
    with Pair("bundled", cloud_share=share, threads=1, deadline=PATIENT) as pair:
        for told, worded in WORDINGS.items():
            right = names = 0
            for question in track(asked, told, console=Console(stderr=True), transient=True):
                pair.forget()
                answer = pair.ask(worded(question), max_tokens=MAX_TOKENS, temperature=0.0)
                right += is_right(question, answer.text)
                names += named(question, answer.text)
            found = (noticed(asked, worded), right, names)
            lines += line([told, *(f"{100 * one / len(asked):.0f}" for one in found)])
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commonsenseqa", type=Path, help="the published dev_rand_split.jsonl")
    parser.add_argument("--gsm8k", type=Path, help="the published test.jsonl")
    parser.add_argument("--questions", type=int, default=200, help="test questions in each wording")
    parser.add_argument("--share", type=float, default=0.05)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    files = {"commonsenseqa": options.commonsenseqa, "gsm8k": options.gsm8k}
    asked = [one for one in pocketqa("test").questions if one.check in ("choice", "number")]
    asked = asked[: options.questions]
    print("\n".join([*counts(files), "", *wordings(asked, options.share)]))
    print(f"\n{len(asked)} test questions with choices or sums, a share of {options.share:.0%}.")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
