"""What is counted of the notice: wordings as they are meant, and both tables end to end."""

import json
from pathlib import Path

import pytest

from benchmarks.notice import WORDINGS, bare, in_its_form, main, named
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

STEM, CHOICES = "Where is a revolving door?", ("bank", "new york")
PROBLEM = "Ann has 5 eggs. She eats 2. How many are left?"


@pytest.fixture
def csqa(tmp_path: Path) -> Path:
    choices = [{"label": label, "text": text} for label, text in zip("AB", CHOICES, strict=True)]
    asked = {"stem": STEM, "choices": choices}
    file = tmp_path / "dev.jsonl"
    file.write_text(json.dumps({"id": "1", "question": asked, "answerKey": "A"}) + "\n")
    return file


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"question": PROBLEM, "answer": "5 - 2 = 3\n#### 3"}) + "\n")
    return file


def test_a_published_question_bare_and_as_pocketqa_asks(csqa: Path, gsm8k: Path) -> None:
    (choice,) = open_task("commonsenseqa", data=csqa).questions
    assert bare(choice) == STEM
    assert in_its_form(choice) == (
        f"Question: {STEM} Choices: bank, new york. Come to the point. Answer and Reasoning:"
    )
    (problem,) = open_task("gsm8k", data=gsm8k).questions
    assert bare(problem) == PROBLEM
    assert in_its_form(problem) == f"Question: {PROBLEM} Show every sum. Answer and Reasoning:"


def test_nothing_but_the_question_is_left_of_one_of_pocketqa() -> None:
    for question in pocketqa("test").questions[:100]:
        left = bare(question)
        assert left in question.prompt
        assert all(f" {part}" not in left for part in ("Choices:", "Answer and Reasoning:"))
        assert left.count("?") <= 1
        assert "? " not in left
        wordings = [worded(question) for worded in WORDINGS.values()]
        assert wordings[0] == question.prompt
        assert len(set(wordings)) == len(wordings)


def test_a_right_answer_may_be_named_without_a_conclusion() -> None:
    sums = Question("1", "steps", "?", "4", "number")
    assert named(sums, "Finn 8-4=4; Finn is left with it.")
    assert not named(sums, "Finn 18-14=14.")


def test_both_tables(csqa: Path, gsm8k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--questions", "2", "--commonsenseqa", str(csqa), "--gsm8k", str(gsm8k)])
    counts, wordings, said = capsys.readouterr().out.split("\n\n")
    rows = [line.strip("| ").split(" | ") for line in counts.splitlines()[2:]]
    assert sum(int(row[2].replace(",", "")) for row in rows[:5]) == 12_750
    assert {row[1] for row in rows[:5]} == {"0"}
    assert [row[1:] for row in rows[5:]] == [["1", "1"]] * 4
    rows = [line.strip("| ").split(" | ") for line in wordings.splitlines()[2:]]
    assert [row[0] for row in rows] == list(WORDINGS)
    assert all(set(row[1:]) <= {"0", "50", "100"} for row in rows)
    assert said.startswith("2 test questions")
