"""Tasks from local files and from the hub, in the formats in which they are published."""

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from edgewise.errors import EdgewiseError
from edgewise_lab.evaluation.tasks.base import Question, Split, Task, TaskSource
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right
from edgewise_lab.evaluation.tasks.named import TASKS, open_task, with_calibration
from tests.evaluation.test_grading import require
from tests.hub import Hub, Repository, in_a_process, serving

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


def answers(task: str, endpoint: str, home: Path) -> str:
    """Those of a task; the hub's client reads its endpoint once, when it is imported."""
    module = "edgewise_lab.evaluation.tasks.named"
    expression = '" ".join(one.answer for one in open_task(address).questions)'
    (found,) = in_a_process(home, endpoint, expression, task, module=module)
    return found


def test_commonsenseqa_as_people_ask_and_as_in_the_paper(tmp_path: Path) -> None:
    data = write(tmp_path / "dev.jsonl", csqa_line())
    task = open_task("commonsenseqa", data=data)
    (question,) = task.questions
    assert question.prompt.startswith("Where is a revolving door?\nA) bank\nB) library\n")
    assert task.max_tokens == 1024
    require(question, "Doors turn.\nAnswer: C", True, True)
    require(question, "The answer is C.", True, False)
    require(question, "Answer: D", False, False)
    task = open_task("commonsenseqa-paper", data=data)
    (question,) = task.questions
    assert (question.prompt, task.max_tokens) == (PROMPT, 100)
    assert question.answer == "department store"
    assert is_right(question, "Therefore, the answer is department store (c).")
    assert not is_right(question, "Therefore, the answer is mall (d).")


def test_gsm8k_is_graded_by_its_number(tmp_path: Path) -> None:
    line = {"question": "How much?", "answer": SOLUTION.replace("18", "1,018")}
    data = write(tmp_path / "test.jsonl", line)
    chat = open_task("gsm8k", data=data)
    assert (chat.questions[0].prompt.partition("\n")[0], chat.max_tokens) == ("How much?", 1024)
    assert is_strictly_right(chat.questions[0], "9 + 9 and so on.\nAnswer: $1,018")
    assert not is_right(chat.questions[0], "Answer: 18")
    (question,) = open_task("gsm8k-paper", data=data).questions
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
        assert answers(name, hub.endpoint, tmp_path) == answer
    assert len(hub.asked("GET", "/resolve/")) == 1
    assert answers(name, "http://127.0.0.1:9", tmp_path) == answer


def test_a_hub_without_the_dataset_and_no_hub_are_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.repositories = {}
    refused = answers("gsm8k", hub.endpoint, tmp_path)
    gone = answers("gsm8k", "http://127.0.0.1:9", tmp_path)
    assert refused.startswith("! The hub refuses 'openai/gsm8k")
    assert gone.startswith("! The ")
    assert "\n" not in refused + gone


@pytest.mark.parametrize(
    ("check", "answer", "choices", "said"),
    [
        (None, "four", None, "It is four."),
        (None, "$1,004", None, "That makes 1004"),
        (None, 4, None, "That makes 4.00."),
        (None, 2.5, None, "That makes 2.50."),
        (None, "four", ["three", "four"], "Therefore, the answer is four."),
        (None, "B", ["three", "four"], "Therefore, the answer is four."),
        ("exact", "four", None, "four"),
        ("number", "4", None, "That makes 4"),
        ("regex", "fo+ur", None, "It is foour."),
        ("choice", "four", ["three", "four"], "Therefore, the answer is four."),
    ],
)
def test_own_questions(
    tmp_path: Path, check: str | None, answer: object, choices: list[str] | None, said: str
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
        ('{"answer": "a"}', None, "missing required field `prompt`"),
        ('{"prompt": "a", "answer": "b", "x": 1}', None, "unknown field `x`"),
        ('{"prompt": "a", "answer": "("}', "regex", "regular expression"),
        ('{"prompt": "a", "answer": "b"}', "number", "'b'"),
        ('{"prompt": "a", "answer": "C", "choices": ["x", "y"]}', None, "choice's text"),
        ("", None, "no questions"),
        ('{"prompt": "a"}', "exact", "no answer"),
        ('{"prompt": "a", "check": "read"}', None, "no answer"),
        ('{"prompt": "a", "answer": "f(", "check": "code"}', None, "Line 1 .*Python"),
        ('{"prompt": "a", "answer": "b", "check": "guess"}', None, "Line 1 .*guess"),
        ('{"messages": [{"role": "user", "content": "a"}], "answer": []}', None, "Line 1 "),
        ('{"prompt": "a"}\n{"prompt": "b", "answer": "c"}', None, "others, such as 1"),
        ('{"messages": [{"role": "system", "content": "a"}]}', None, "Line 1 .*no message"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', None, "Line 1 .*tool"),
        ('{"messages": ' + "[" * 100_000, None, "Line 1 "),
        ('{"prompt": ' + "[" * 100_000, None, "Line 1 "),
        ('{"messages": "\udcff"}', None, "Line 1 "),
    ],
)
def test_a_bad_line_is_one_sentence(
    tmp_path: Path, line: str, check: str | None, problem: str
) -> None:
    (tmp_path / "mine.jsonl").write_text(line, errors="surrogateescape")
    with pytest.raises(EdgewiseError, match=problem):
        open_task(str(tmp_path / "mine.jsonl"), check=check)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("name", ["pocketqa", "mine.jsonl"])
def test_the_longest_answer_is_the_task_s_own_or_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    numbered(tmp_path / "mine.jsonl", 9)
    own = open_task(name).max_tokens
    for given, most in (({"max_tokens": 31}, 31), ({}, own)):
        assert [task.max_tokens for task in opened(name, limit=2, **given)] == [most, most]
    with pytest.raises(EdgewiseError, match="max-tokens") as caught:
        opened(name, limit=2, max_tokens=0)
    assert caught.value.setting == "max_tokens"


def numbered(path: Path, count: int, prompt: str = "Say {}.") -> Path:
    return write(path, *({"prompt": prompt.format(i), "answer": f"{i}"} for i in range(count)))


def opened(name: object, use: str = "test", **more: object) -> tuple[Task, Task]:
    given = {"data": None, "check": None, "limit": None, "calibration": 3, **more}
    return with_calibration(str(name), use, **given)  # type: ignore[arg-type]


def prepared(name: object, use: str = "test", **more: object) -> tuple[list[str], list[str]]:
    """Prompts to use, and prompts to calibrate on."""
    used, held_out = ([q.prompt for q in task.questions] for task in opened(name, use, **more))
    return used, held_out


def test_the_train_split_ends_with_what_thresholds_are_set_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Split3(TaskSource):
        name, splits = "three", ("train", "test")

        def open(self, split: Split, data: Path | None = None) -> Task:
            questions = [Question(f"{i}", "f", f"{split} {i}", "", "exact") for i in range(8)]
            return Task("three", tuple(questions), 8)

    monkeypatch.setattr(TASKS, "load", lambda name: Split3)
    monkeypatch.setattr(type(TASKS), "__contains__", lambda self, name: name == "three")
    test, train = ([f"{split} {i}" for i in range(8)] for split in ("test", "train"))
    assert prepared("three") == (test, train[-3:])
    assert prepared("three", "train") == (train[:-3], train[-3:])


@pytest.mark.parametrize(
    ("setting", "count", "problem"),
    [
        ("limit", 0, "The limit must be 1 or more, not 0."),
        ("calibration", 0, "The calibration must be 1 or more"),
        ("calibration", 4, "4 questions"),
    ],
)
def test_counts_that_leave_nothing(tmp_path: Path, setting: str, count: int, problem: str) -> None:
    with pytest.raises(EdgewiseError, match=problem) as caught:
        prepared(numbered(tmp_path / "mine.jsonl", 4), **{setting: count})
    assert caught.value.setting == setting


def test_one_prompt_never_stands_on_both_sides(tmp_path: Path) -> None:
    path = numbered(tmp_path / "mine.jsonl", 30)
    path.write_text(2 * path.read_text())
    with pytest.raises(EdgewiseError, match="60 questions") as caught:
        prepared(path, "train", calibration=30)
    assert caught.value.setting == "calibration"
    used, held_out = prepared(path, "train", calibration=10)
    assert (len(used), len(held_out)) == (40, 10)
    assert not {*used} & {*held_out}


def test_nothing_is_set_aside_where_nothing_is_calibrated(tmp_path: Path) -> None:
    """The same questions are named for it, so that a folder of answers is known again."""
    path = numbered(tmp_path / "mine.jsonl", 30)
    before = opened(path, limit=9, calibration=None)
    assert opened(path, limit=9, calibration=None, calibrated=False) == before
    assert len(opened(path, calibration=None, calibrated=False)[0].questions) == 30
    assert len(opened(path, calibration=2, calibrated=False)[0].questions) == 28


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("pocketqa", "data", "pocketqa has its own .*; drop the data"),
        ("pocketqa", "check", "drop the check"),
        ("gsm8k", "check", "drop the check"),
        ("mine.jsonl", "data", "is a file of its own"),
        ("no.jsonl", None, "gsm8k-paper, humaneval, pocketqa or a JSON Lines"),
        (".", None, "'.' is a folder"),
    ],
)
def test_what_a_task_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: str | None, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    numbered(tmp_path / "mine.jsonl", 2)
    more: dict[str, Any] = {given: {"data": "x", "check": "number"}[given]} if given else {}
    with pytest.raises(EdgewiseError, match=problem) as caught:
        open_task(name, **more)
    assert caught.value.setting == given


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, packed = tmp_path / "mine.jsonl", tmp_path / "mine.jsonl.gz"

    def refused(match: str, name: str, given: Path | None = None) -> None:
        with pytest.raises(EdgewiseError, match=match):
            open_task(name, data=given)

    path.write_bytes(b'{"prompt": "\xff", "answer": ""}\n')
    refused("Line 1", str(path))
    refused("split it", "gsm8k", Path("/dev/zero"))
    refused("No such file", "gsm8k", tmp_path / "gone.jsonl")
    data = gzip.compress(json.dumps({"prompt": "a" * 999}).encode())
    packed.write_bytes(data[:-9])
    refused("cannot be read", str(packed))
    packed.write_bytes(data)
    assert len(open_task(str(packed)).questions) == 1
    monkeypatch.setattr("edgewise_lab.evaluation.tasks.records.MAX_FILE", 900)
    refused("split it", str(packed))
    monkeypatch.setattr("edgewise_lab.evaluation.tasks.records.MAX_FILE", 1)
    refused("split it", str(path))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes('{"prompt": "é"}\r\n{"prompt": "b"}\r\n'.encode(encoding))
    assert [one.prompt for one in open_task(str(path)).questions] == ["é", "b"]


def test_prompts_alone_and_conversations(tmp_path: Path) -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3?"},
        {"role": "assistant", "content": "7"},
    ]
    path = write(tmp_path / "mine.jsonl", {"prompt": "a"}, {"messages": turns, "model": "gpt"})
    alone, chat = open_task(str(path)).questions
    assert (alone.known, alone.check, chat.known, chat.check) == (False, "words", False, "words")
    assert [turn.role for turn in chat.messages] == ["system", "user", "assistant", "user"]
    assert [turn.content for turn in chat.messages] == ["Be brief.", "2 + 2?", "4", "And 3?"]
    assert "2 + 2?" in chat.text
    task, held_out = opened(path, "train", calibration=None, known=False)
    assert (len(task.questions), len(held_out.questions)) == (1, 1)
    with pytest.raises(EdgewiseError, match="no right answers"):
        opened(path, "train", calibration=None)
    # What a person must read teaches nothing.
    lines = ({"prompt": f"{n}?", "answer": "It rhymes.", "check": "read"} for n in range(9))
    path = write(tmp_path / "read.jsonl", *lines)
    with pytest.raises(EdgewiseError, match="must read"):
        opened(path, "train", known=False)
    assert len(opened(path, known=False)[0].questions) == 6


def test_the_name_of_a_line_is_its_number(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n\n{"prompt": "c", "answer": "d"}\n')
    task = open_task(str(path))
    assert [question.id for question in task.questions] == ["1", "3"]
    assert task.families == ("mine",)
    assert task.first(1).questions == task.questions[:1]


@pytest.mark.parametrize("split", get_args(Split))
def test_the_bundled_questions_can_all_be_graded(split: Split) -> None:
    task = TASKS.load("pocketqa")().open(split)
    assert task.families == ("facts", "two-hop", "analogy", "each", "steps")
    assert [question.family for question in task.questions[:5]] == list(task.families)
    assert len({question.id for question in task.questions}) == len(task.questions)
    referred = [question for question in task.questions if question.reference]
    assert len(referred) == (len(task.questions) if split == "train" else 0)
    assert all(is_strictly_right(question, question.reference) for question in referred)


def test_a_calibration_file_brings_no_question_that_is_used(tmp_path: Path) -> None:
    used = numbered(tmp_path / "used.jsonl", 6)
    more = numbered(tmp_path / "more.jsonl", 12)
    more.write_text("".join(more.read_text().splitlines(keepends=True)[3:]))
    task, held_out = prepared(used, calibration_data=more, calibration=4)
    assert len(task) == 6
    assert held_out == [f"Say {n}." for n in range(8, 12)]
    assert len(prepared(used, calibration_data=more, calibration=100)[1]) == 6
    with pytest.raises(EdgewiseError, match="others") as problem:
        prepared(used, calibration_data=used)
    assert problem.value.setting == "calibration_data"


@pytest.mark.parametrize("packed", [False, True])
def test_humaneval_is_graded_by_its_tests(tmp_path: Path, packed: bool) -> None:
    line = {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\ndef twice(n: int) -> List[int]:\n    """Twice."""\n',
        "canonical_solution": "    return [n, n]\n",
        "test": "\n\ndef check(candidate):\n    assert candidate(3) == [3, 3]\n\n",
        "entry_point": "twice",
    }
    data = write(tmp_path / "HumanEval.jsonl", line)
    if packed:
        data.write_bytes(gzip.compress(data.read_bytes()))
    task = open_task("humaneval", data=data)
    (question,) = task.questions
    assert (task.max_tokens, question.check, question.id) == (1024, "code", "HumanEval/0")
    assert question.prompt.endswith('"""Twice."""\n```')
    whole = "```python\ndef twice(n: int) -> List[int]:\n    return 2 * [n]\n```"
    assert is_strictly_right(question, f"Here it is.\n{whole}")
    assert is_strictly_right(question, question.reference)
    assert not is_right(question, whole.replace("2", "3"))


def test_each_line_has_a_check_of_its_own(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    chat.append({"role": "user", "content": "And 3?"})
    path = write(
        tmp_path / "mine.jsonl",
        {"prompt": "Twice?", "answer": "assert f(2) == 4", "check": "code", "family": "code"},
        {"prompt": "One?", "answer": '{"type": "integer"}', "check": "json"},
        {"prompt": "A poem?", "answer": "It rhymes.", "check": "read"},
        {"messages": chat, "answer": 7, "check": "number", "id": "chat"},
        {"prompt": "Paris?", "answer": "Paris"},
    )
    task = open_task(str(path), check="regex")
    said = ("```\ndef f(n): return 2 * n\n```", "1", "A rhyme.", "So it is 7.", "In Paris.")
    checks = [question.check for question in task.questions]
    assert checks == ["code", "json", "read", "number", "regex"]
    graded = [is_right(*pair) for pair in zip(task.questions, said, strict=True)]
    assert graded == [True, True, False, True, True]
    assert (task.questions[3].id, task.known) == ("chat", True)
