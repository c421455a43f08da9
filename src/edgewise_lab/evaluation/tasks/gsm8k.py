"""GSM8K (Cobbe et al. 2021), as two tasks that differ in the prompt."""

import re
from pathlib import Path

import msgspec

from edgewise.errors import UsageError
from edgewise_lab.evaluation.tasks.base import Question, Split, Task, TaskSource
from edgewise_lab.evaluation.tasks.records import read_lines, read_parquet

MAX_TOKENS, PAPER_TOKENS = 1024, 320
HUB = "openai/gsm8k"
FILE = "main/{}-00000-of-00001.parquet"
CHAT_FORMAT = '{}\n\nThink step by step, and end with "Answer: NUMBER".'
FORMAT = (
    "Question: {} Please format your response in the following way: [Steps]. Therefore, the answer "
    "is number. Answer and Reasoning:"
)


class _Line(msgspec.Struct, frozen=True):
    question: str
    answer: str


class Gsm8k(TaskSource):
    """GSM8K from the hub or a local file, asked in the chat form ("Answer: NUMBER")."""

    name = "gsm8k"
    splits = ("train", "test")
    local = True
    max_tokens, format = MAX_TOKENS, CHAT_FORMAT

    def open(self, split: Split, data: Path | None = None) -> Task:
        if data is None:
            lines = list(enumerate(read_parquet(HUB, FILE.format(split), _Line), 1))
        else:
            lines = list(read_lines(data, _Line))
        questions = (_question(*line, self.format) for line in lines)
        return Task(self.name, tuple(questions), self.max_tokens)


class Gsm8kPaper(Gsm8k):
    """GSM8K with the prompt of arXiv 2504.07878."""

    name = "gsm8k-paper"
    max_tokens, format = PAPER_TOKENS, FORMAT


def _question(number: int, line: _Line, form: str) -> Question:
    solution, _, answer = line.answer.partition("####")
    if not answer.strip():
        raise UsageError(f"Problem {number} has no '#### answer'", hint="use the published files")
    return Question(
        id=f"gsm8k-{number:04d}",
        family="gsm8k",
        prompt=form.format(line.question),
        answer=answer.strip(),
        check="number",
        reference=re.sub(r"<<.*?>>", "", solution).strip(),
    )
