"""The options of commands that take a task."""

from pathlib import Path
from typing import Annotated

import typer

from edgewise_lab.evaluation.tasks.base import Grading

TaskName = Annotated[
    str, typer.Argument(help="pocketqa, commonsenseqa, gsm8k or a JSON Lines file.")
]
Data = Annotated[Path | None, typer.Option(help="Local copy of the task's published file.")]
Check = Annotated[
    Grading | None, typer.Option(help="How a JSON Lines file is graded; default exact.")
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Longest answer, tokens; default: the task's own, 256 a file's.")
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Only the first N questions.")]
