"""HumanEval (Chen et al. 2021), asked for in a chat and graded by its own tests."""

from pathlib import Path

import msgspec

from edgewise_lab.evaluation.tasks.base import Question, Split, Task, TaskSource
from edgewise_lab.evaluation.tasks.records import read_lines, read_parquet

MAX_TOKENS = 1024
HUB = "openai/openai_humaneval"
FILE = "openai_humaneval/test-00000-of-00001.parquet"
FORMAT = "Complete this function. Reply with the whole function in one Python code block."


class _Line(msgspec.Struct, frozen=True):
    task_id: str
    prompt: str
    canonical_solution: str
    test: str
    entry_point: str


class HumanEval(TaskSource):
    """HumanEval, from the hub or a local file."""

    name = "humaneval"
    splits = ("test",)
    local = True

    def open(self, split: Split, data: Path | None = None) -> Task:
        if data is None:
            lines = list(read_parquet(HUB, FILE, _Line))
        else:
            lines = [line for _, line in read_lines(data, _Line)]
        return Task(self.name, tuple(map(_question, lines)), MAX_TOKENS)


def _question(line: _Line) -> Question:
    return Question(
        id=line.task_id,
        family="humaneval",
        prompt=f"{FORMAT}\n\n```python\n{line.prompt.strip()}\n```",
        answer=f"{line.test}\n\ncheck({line.entry_point})\n",
        check="code",
        reference=f"```python\n{line.prompt}{line.canonical_solution}```",
    )
