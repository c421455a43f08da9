"""The bundled everyday prompts, each of which a right and a wrong reply tells apart."""

from pathlib import Path

import msgspec
import pytest

from edgewise_lab.evaluation.tasks.grading import is_right
from edgewise_lab.evaluation.tasks.named import open_prompts, open_task

TASK = open_task("everyday")
QUESTIONS = {question.id: question for question in TASK.questions}
GRADED = [question for question in TASK.questions if question.check != "read"]


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    text: str


def replies(name: str) -> list[Reply]:
    """Replies that were written by hand, a line each."""
    lines = (Path(__file__).parent / name).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Reply) for line in lines]


RIGHT = [*(Reply(one.id, one.reference) for one in GRADED), *replies("everyday_right.jsonl")]
WRONG = replies("everyday_wrong.jsonl")


def test_there_are_enough_of_enough_kinds() -> None:
    assert TASK.max_tokens == 1024
    assert len(TASK.questions) >= 150
    assert len(TASK.families) >= 15
    assert len({question.text.casefold() for question in TASK.questions}) == len(QUESTIONS)
    assert len(TASK.questions) - len(GRADED) <= 30
    assert all(question.answer and question.reference for question in TASK.questions)
    assert {reply.id for reply in WRONG} == {question.id for question in GRADED}


def test_the_first_are_short_and_of_many_kinds_and_a_first_try_runs_no_code_of_a_reply() -> None:
    first = TASK.first(20).questions
    assert len({question.family for question in first}) >= 8
    assert all(question in GRADED for question in first)
    assert max(len(question.reference) for question in first) < 320
    tried = open_prompts(None).questions
    assert len(tried) == 20
    assert "code" not in {question.check for question in tried}


@pytest.mark.parametrize("reply", RIGHT, ids=lambda reply: reply.id)
def test_a_right_reply_is_right(reply: Reply) -> None:
    assert is_right(QUESTIONS[reply.id], reply.text)


@pytest.mark.parametrize("reply", WRONG, ids=lambda reply: reply.id)
def test_a_wrong_reply_is_wrong(reply: Reply) -> None:
    assert not is_right(QUESTIONS[reply.id], reply.text)
