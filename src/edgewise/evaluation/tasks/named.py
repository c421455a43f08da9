"""From what a user writes to a task."""

from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from edgewise.errors import UsageError
from edgewise.evaluation.tasks.base import Grading, Task
from edgewise.evaluation.tasks.commonsenseqa import commonsenseqa
from edgewise.evaluation.tasks.gsm8k import gsm8k
from edgewise.evaluation.tasks.jsonl import jsonl
from edgewise.evaluation.tasks.pocketqa import pocketqa

Use = Literal["train", "test"]

_PUBLISHED = {"commonsenseqa": commonsenseqa, "gsm8k": gsm8k}


def open_task(
    name: str, *, data: Path | None = None, check: Grading | None = None, use: Use = "test"
) -> Task:
    """`pocketqa`, `commonsenseqa`, `gsm8k` or a JSON Lines file.

    `data` is a local copy of the published file; `check` how the answers of a JSON Lines file
    are graded (default: exact). `use` chooses the split where a task has several.
    """
    path = Path(name).expanduser()
    if name == "pocketqa" and data is None and check is None:
        task = pocketqa(use)
    elif name in _PUBLISHED and check is None:
        task = _PUBLISHED[name](data, use)
    elif name in ("pocketqa", *_PUBLISHED):
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
    use: Use,
    *,
    data: Path | None,
    check: Grading | None,
    limit: int | None,
    calibration: int,
    calibration_data: Path | None = None,
) -> tuple[Task, Task]:
    """The first `limit` questions to use, and `calibration` others to set thresholds with.

    The bundled questions have a split for that. Otherwise these are the last ones of
    `calibration_data`, a file like `data`; without it, of the published tasks on the hub the end
    of the train split, which training leaves out, and of a local file its own end.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {limit}.")
    if calibration < 1:
        raise UsageError(f"--calibration must be 1 or more, not {calibration}.")
    task = open_task(name, data=data, check=check, use=use)
    if calibration_data is not None:
        other = _beside(name, calibration_data, check)
        return task.first(limit), replace(other, questions=other.questions[-calibration:])
    if name == "pocketqa":
        return task.first(limit), pocketqa("calibration").first(calibration)
    if name in _PUBLISHED and data is None and use == "test":
        return task.first(limit), _split(open_task(name, use="train"), calibration)[1]
    rest, held_out = _split(task, calibration)
    return rest.first(limit), held_out


def _beside(name: str, data: Path, check: Grading | None) -> Task:
    """The questions of another file of the same task."""
    if name == "pocketqa" or name in _PUBLISHED:
        return open_task(name, data=data, check=check)
    return open_task(str(data), check=check)


def _split(task: Task, calibration: int) -> tuple[Task, Task]:
    """The last `calibration` questions apart; no prompt stands on both sides."""
    held_out = task.questions[-calibration:]
    apart = {question.prompt for question in held_out}
    before = task.questions[: -len(held_out)]
    rest = tuple(question for question in before if question.prompt not in apart)
    if not rest:
        raise UsageError(
            f"{len(task.questions)} questions leave none beside {calibration} to calibrate on; "
            "lower --calibration."
        )
    return replace(task, questions=rest), replace(task, questions=held_out)
