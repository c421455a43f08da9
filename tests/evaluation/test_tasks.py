"""Tasks from local files and from the hub, in the formats in which they are published."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from edgewise.errors import EdgewiseError
from edgewise.evaluation.tasks.grading import is_right
from edgewise.evaluation.tasks.named import open_task
from tests.hub import Hub, Repository, serving

CHOICES = ["bank", "library", "department store", "mall", "new york"]
PROMPT = (
    "Question: Where is a revolving door? Choices: A. bank B. library C. department store D. mall "
    "E. new york Please format your response in the following way: [Explanation]. Therefore, the "
    "answer is answer (label). Answer and Reasoning:"
)
SOLUTION = "She sells 16 - 7 = <<16-7=9>>9 eggs.\nThat is 9 * 2 = $<<9*2=18>>18.\n#### 18"


def csqa_line(key: str = "C") -> dict[str, object]:
    choices = [{"label": label, "text": text} for label, text in zip("ABCDE", CHOICES, strict=True)]
    asked = {"question_concept": "door", "choices": choices, "stem": "Where is a revolving door?"}
    return {"answerKey": key, "id": "x1", "question": asked}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def table(rows: list[dict[str, object]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


SCRIPT = """
import sys
from edgewise.errors import EdgewiseError
from edgewise.evaluation.tasks.named import open_task
try:
    print(*(question.answer for question in open_task(sys.argv[1]).questions))
except EdgewiseError as error:
    print("!", error)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with both datasets as their owners publish them."""
    row = {
        "id": "x1",
        "question": "Where is a revolving door?",
        "question_concept": "door",
        "choices": {"label": list("ABCDE"), "text": CHOICES},
        "answerKey": "C",
    }
    solved = {"question": "How?", "answer": SOLUTION}
    files = {
        "datasets/tau/commonsense_qa": {"data/validation-00000-of-00001.parquet": table([row])},
        "datasets/openai/gsm8k": {"main/test-00000-of-00001.parquet": table([solved])},
    }
    with serving(Hub({name: Repository(held) for name, held in files.items()})) as served:
        yield served


def in_a_fresh_process(task: str, endpoint: str, home: Path) -> str:
    """The answers of a task; the hub's client reads its endpoint once, when it is imported."""
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("HF_", "HTTP"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, task],
        capture_output=True,
        text=True,
        timeout=50,
        env={**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_commonsenseqa_is_asked_as_in_the_paper(tmp_path: Path) -> None:
    task = open_task("commonsenseqa", data=write(tmp_path / "dev.jsonl", csqa_line()))
    (question,) = task.questions
    assert question.prompt == PROMPT
    assert question.answer == "department store"
    assert is_right(question, "Therefore, the answer is department store (c).")
    assert not is_right(question, "Therefore, the answer is mall (d).")


def test_gsm8k_is_graded_by_its_number(tmp_path: Path) -> None:
    line = {"question": "How much?", "answer": SOLUTION.replace("18", "1,018")}
    (question,) = open_task("gsm8k", data=write(tmp_path / "test.jsonl", line)).questions
    assert question.prompt.startswith("Question: How much? Please format")
    assert "<<" not in question.reference
    assert is_right(question, "Therefore, the answer is $1018.")
    assert not is_right(question, "Therefore, the answer is 1019.")


@pytest.mark.parametrize(
    ("name", "answer"), [("commonsenseqa", "department store"), ("gsm8k", "18")]
)
def test_a_published_task_comes_from_the_hub_once(
    hub: Hub, tmp_path: Path, name: str, answer: str
) -> None:
    for _ in range(2):
        assert in_a_fresh_process(name, hub.endpoint, tmp_path) == answer
    assert len(hub.asked("GET", "/resolve/")) == 1
    assert in_a_fresh_process(name, "http://127.0.0.1:9", tmp_path) == answer


def test_a_hub_without_the_dataset_and_no_hub_are_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.repositories = {}
    refused = in_a_fresh_process("gsm8k", hub.endpoint, tmp_path)
    assert refused.startswith("! The hub refuses 'openai/gsm8k")
    gone = in_a_fresh_process("gsm8k", "http://127.0.0.1:9", tmp_path)
    assert gone.startswith("! The ")
    assert "\n" not in refused + gone


@pytest.mark.parametrize(
    ("check", "answer", "choices", "said"),
    [
        (None, "four", None, "four"),
        ("number", "4", None, "That makes 4"),
        ("regex", "fo+ur", None, "It is foour."),
        ("choice", "four", ["three", "four"], "Therefore, the answer is four."),
    ],
)
def test_own_questions(
    tmp_path: Path, check: str | None, answer: str, choices: list[str] | None, said: str
) -> None:
    line = {"prompt": "2 + 2?", "answer": answer, "choices": choices, "family": "sums"}
    path = write(tmp_path / "mine.jsonl", line, line)
    task = open_task(str(path), check=check)  # type: ignore[arg-type]
    assert (task.name, task.families, len(task.questions)) == ("mine", ("sums",), 2)
    assert is_right(task.questions[0], said)
    assert not is_right(task.questions[0], "No idea.")


@pytest.mark.parametrize(
    ("line", "check", "problem"),
    [
        ("{", None, "Line 1 of .* is not valid"),
        ('{"prompt": "a"}', None, "missing required field `answer`"),
        ('{"prompt": "a", "answer": "b", "x": 1}', None, "unknown field `x`"),
        ('{"prompt": "a", "answer": "("}', "regex", "no regular expression"),
        ('{"prompt": "a", "answer": "b", "choices": ["c"]}', "choice", "none of its choices"),
        ('{"prompt": "a", "answer": "b"}', "choice", "none of its choices"),
        ("", None, "no questions"),
    ],
)
def test_a_bad_line_is_one_sentence(
    tmp_path: Path, line: str, check: str | None, problem: str
) -> None:
    (tmp_path / "mine.jsonl").write_text(line)
    with pytest.raises(EdgewiseError, match=problem):
        open_task(str(tmp_path / "mine.jsonl"), check=check)  # type: ignore[arg-type]


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    line = {"prompt": "a", "answer": "b", "id": "1"}
    with pytest.raises(EdgewiseError, match="same id"):
        open_task(str(write(tmp_path / "mine.jsonl", line, line)))


@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("commonsenseqa", csqa_line("F"), "no choice 'F'"),
        ("commonsenseqa", {"id": "1"}, "missing required field"),
        ("gsm8k", {"question": "q", "answer": "18"}, "no '#### answer'"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, name: str, line: object, problem: str
) -> None:
    with pytest.raises(EdgewiseError, match=problem):
        open_task(name, data=write(tmp_path / "data.jsonl", line))


def test_unknown_names_and_useless_flags_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", {"prompt": "a", "answer": "b"})
    for arguments in (
        {"name": "mmlu"},
        {"name": "pocketqa", "data": path},
        {"name": "gsm8k", "check": "exact"},
        {"name": "gsm8k", "data": tmp_path / "gone.jsonl"},
        {"name": str(path), "data": path},
    ):
        with pytest.raises(EdgewiseError):
            open_task(**arguments)  # type: ignore[arg-type]
