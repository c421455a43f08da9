"""Short factual questions, each with the pattern of its right answers.

Every row of a table (an element, a country, a noun) lies in one split. Of the test, the family
`new` asks of rows that neither training nor calibration saw; the family `seen` asks training's
rows in words that training did not use for them.

python -m benchmarks.real_weights.questions FOLDER   # JSON Lines, for train and eval
"""

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise_lab.evaluation.tasks.base import Question, Task

DATA = Path(__file__).parent / "data"
MANNER = "Answer in one short sentence."
MAX_TOKENS = 48

Split = Literal["train", "calibration", "test"]
SPLITS: tuple[Split, ...] = ("train", "calibration", "test")
TRAIN, CALIBRATION = 0.6, 0.15
"""Of the rows; the test has the others."""


class Relation(NamedTuple):
    """What is asked of each row of a table: from the column `given` to the column `wanted`."""

    task: str
    name: str
    table: str
    given: str
    wanted: str
    phrasings: tuple[str, ...]
    cased: bool = False


_WORDS = {"As", "At", "Be", "He", "I", "In", "No"}
"""Symbols that are English words: a pattern would find them anywhere."""

RELATIONS = (
    Relation(
        "elements",
        "symbol-element",
        "elements",
        "symbol",
        "name",
        (
            "Which chemical element has the symbol {}?",
            "What element does the chemical symbol {} stand for?",
            "In the periodic table, which element is written as {}?",
            "Name the chemical element whose symbol is {}.",
            "{} is the symbol of which chemical element?",
        ),
    ),
    Relation(
        "elements",
        "element-symbol",
        "elements",
        "name",
        "symbol",
        (
            "What is the chemical symbol of {}?",
            "Which symbol does {} have in the periodic table?",
            "How is the element {} abbreviated in chemistry?",
            "Give the chemical symbol for {}.",
            "The element {} has which chemical symbol?",
        ),
        cased=True,
    ),
    Relation(
        "places",
        "capital",
        "countries",
        "country",
        "capital",
        (
            "What is the capital of {}?",
            "Which city is the capital of {}?",
            "Name the capital city of {}.",
            "What is {}'s capital city called?",
        ),
    ),
    Relation(
        "places",
        "continent",
        "countries",
        "country",
        "continent",
        (
            "On which continent is {}?",
            "Which continent does {} belong to?",
            "Name the continent where {} is located.",
            "{} lies on which continent?",
        ),
    ),
    Relation(
        "places",
        "language",
        "countries",
        "country",
        "language",
        (
            "What language is spoken in {}?",
            "Which language do most people in {} speak?",
            "What is the official language of {}?",
            "Name the main language of {}.",
        ),
    ),
    Relation(
        "words",
        "opposite",
        "opposites",
        "word",
        "opposite",
        (
            'What is the opposite of "{}"?',
            'Which word means the opposite of "{}"?',
            'Give an antonym of "{}".',
            'What is the antonym of the word "{}"?',
        ),
    ),
    Relation(
        "words",
        "past",
        "verbs",
        "verb",
        "past",
        (
            'What is the past tense of "{}"?',
            'What is the past tense of the verb "{}"?',
            'What is the past tense form of "{}"?',
            'Give the past tense of the word "{}".',
        ),
    ),
    Relation(
        "words",
        "plural",
        "nouns",
        "noun",
        "plural",
        (
            'What is the plural of "{}"?',
            'What is the plural form of the noun "{}"?',
            'Give the plural of the word "{}".',
            'How do you write "{}" in the plural?',
        ),
    ),
)


TASKS = tuple(dict.fromkeys(relation.task for relation in RELATIONS))


class Asked(NamedTuple):
    """A question of one row, in one of its relation's phrasings."""

    row: str
    phrasing: int
    question: Question


def table(name: str) -> list[dict[str, str]]:
    """Rows by column; a slash parts answers that are equally right."""
    with (DATA / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def pattern(answers: str, *, cased: bool = False) -> str:
    """Matches any of the answers as whole words."""
    either = "|".join(map(re.escape, answers.split("/")))
    return rf"{'' if cased else '(?i)'}(?<!\w)(?:{either})(?!\w)"


def asked(relation: Relation) -> Iterator[Asked]:
    """Every row in every phrasing."""
    for cells in table(relation.table):
        given, wanted = cells[relation.given].split("/")[0], cells[relation.wanted]
        if relation.cased and wanted in _WORDS:
            continue
        row = next(iter(cells.values())).split("/")[0]
        answer = pattern(wanted, cased=relation.cased)
        for number, phrasing in enumerate(relation.phrasings):
            name = f"{relation.name}:{row}:{number}"
            prompt = f"{phrasing.format(given)} {MANNER}"
            yield Asked(row, number, Question(name, "", prompt, answer, check="regex"))


def drawn(seed: str) -> float:
    """From 0 to 1, evenly, the same everywhere."""
    return int.from_bytes(sha256(seed.encode()).digest()[:8]) / 2**64


def task(name: str, split: Split) -> Task:
    """The questions of a split, mixed."""
    found: list[Question] = []
    for relation in RELATIONS:
        if relation.task != name:
            continue
        for row, phrasing, question in asked(relation):
            side = _side(f"{relation.table}:{row}")
            held_back = int(drawn(f"phrasing:{relation.name}:{row}") * len(relation.phrasings))
            seen = side == "train" and phrasing == held_back
            if split == ("test" if seen else side):
                family = "seen" if seen else "new" if split == "test" else name
                found.append(replace(question, family=family))
    found.sort(key=lambda question: drawn(question.id))
    return Task(name, tuple(found), MAX_TOKENS)


def tasks(split: Split, names: Sequence[str] = TASKS) -> Task:
    """The questions of several tasks in one, mixed."""
    found = [question for name in names for question in task(name, split).questions]
    found.sort(key=lambda question: drawn(question.id))
    return Task("real weights", tuple(found), MAX_TOKENS)


def _side(row: str) -> Split:
    at = drawn(f"row:{row}")
    return "train" if at < TRAIN else "calibration" if at < TRAIN + CALIBRATION else "test"


def write(folder: Path) -> list[Path]:
    """A file for each task and split, as `edgewise train` and `edgewise eval` read them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, split in product(TASKS, SPLITS):
        lines = [
            msgspec.json.encode(
                {"prompt": q.prompt, "answer": q.answer, "family": q.family, "id": q.id}
            )
            for q in task(name, split).questions
        ]
        paths.append(folder / f"{name}-{split}.jsonl")
        paths[-1].write_bytes(b"\n".join(lines) + b"\n")
    return paths


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(path)
