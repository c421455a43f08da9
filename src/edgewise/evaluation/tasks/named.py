"""From what a user writes to a task."""

from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise.evaluation.tasks.base import Check, Task
from edgewise.evaluation.tasks.commonsenseqa import commonsenseqa
from edgewise.evaluation.tasks.gsm8k import gsm8k
from edgewise.evaluation.tasks.jsonl import jsonl
from edgewise.evaluation.tasks.pocketqa import pocketqa


def open_task(name: str, *, data: Path | None = None, check: Check | None = None) -> Task:
    """`pocketqa`, `commonsenseqa`, `gsm8k` or a JSON Lines file.

    `data` is a local copy of the published file; `check` how the answers of a JSON Lines file
    are graded (default: exact).
    """
    published = {"commonsenseqa": commonsenseqa, "gsm8k": gsm8k}
    path = Path(name).expanduser()
    if name == "pocketqa" and data is None and check is None:
        task = pocketqa()
    elif name in published and check is None:
        task = published[name](data)
    elif name in ("pocketqa", *published):
        flag = "--check" if check else "--data"
        raise UsageError(f"The task {name} has its own questions and grading; drop {flag}.")
    elif path.is_file() and data is None:
        task = jsonl(path, check or "exact")
    else:
        raise UsageError(
            f"There is no task {name!r}; name pocketqa, commonsenseqa, gsm8k or a JSON Lines file."
        )
    if not task.questions:
        raise UsageError(f"The task {name!r} has no questions.")
    return task


def with_calibration(
    name: str,
    use: Literal["train", "test"],
    *,
    data: Path | None,
    check: Check | None,
    limit: int | None,
    calibration: int,
) -> tuple[Task, Task]:
    """The first `limit` questions to use, and `calibration` others to set thresholds with.

    The bundled questions have splits of their own; of other tasks the last ones are set aside.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {limit}.")
    if calibration < 1:
        raise UsageError(f"--calibration must be 1 or more, not {calibration}.")
    task = open_task(name, data=data, check=check)
    if name == "pocketqa":
        return pocketqa(use).first(limit), pocketqa("calibration").first(calibration)
    rest = len(task.questions) - calibration
    if rest < 1:
        raise UsageError(
            f"{len(task.questions)} questions leave none beside {calibration} to calibrate on; "
            "lower --calibration."
        )
    held_out = replace(task, questions=task.questions[rest:])
    return replace(task, questions=task.questions[:rest]).first(limit), held_out
