"""Open the tasks that a user names, and set questions apart to calibrate thresholds on."""

from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from edgewise.addresses import from_home
from edgewise.errors import UsageError
from edgewise.registry import Registry, did_you_mean
from edgewise_lab.evaluation.tasks import everyday
from edgewise_lab.evaluation.tasks.base import Grading, Task, TaskSource
from edgewise_lab.evaluation.tasks.records import jsonl, prompts

Use = Literal["train", "test"]

USUAL = {"train": 300, "test": 100}
"""Default number of calibration questions, by use; at most a fifth of a file's questions."""

EVERYDAY = 20
"""Number of bundled everyday prompts that are tried if the user names none."""

TASKS: Registry[type[TaskSource]] = Registry(
    "task",
    "edgewise.tasks",
    {
        "pocketqa": "edgewise_lab.evaluation.tasks.pocketqa:PocketQa",
        "commonsenseqa": "edgewise_lab.evaluation.tasks.commonsenseqa:CommonsenseQa",
        "commonsenseqa-paper": "edgewise_lab.evaluation.tasks.commonsenseqa:CommonsenseQaPaper",
        "everyday": "edgewise_lab.evaluation.tasks.everyday:Everyday",
        "gsm8k": "edgewise_lab.evaluation.tasks.gsm8k:Gsm8k",
        "gsm8k-paper": "edgewise_lab.evaluation.tasks.gsm8k:Gsm8kPaper",
        "humaneval": "edgewise_lab.evaluation.tasks.humaneval:HumanEval",
    },
    wanted=("name", "splits", "local", "open"),
)


def open_task(
    name: str, *, data: Path | None = None, check: Grading | None = None, use: Use = "test"
) -> Task:
    """Open a task by its name in `TASKS`, or a JSON Lines file by its path.

    `data` is a local copy of the task's published file; `check` is how the answers of a JSON Lines
    file are graded (default: `suited`); `use` is a task's split. Right answers may be unknown
    (`Task.known`). Raises `UsageError` if there is no such task or file, or the options do not fit.
    """
    source = _source(name)
    if source is not None:
        return _checked(name, _opened(source, use, data, check))
    path = from_home(name)
    if not path.is_file():
        problem = f"There is no task {name!r}"
        if path.suffix or path.name != name:
            problem = f"The file {name!r} {'is a folder' if path.is_dir() else 'does not exist'}"
        raise UsageError(
            problem,
            hint=did_you_mean(
                name, TASKS.names(), f"name {', '.join(TASKS.names())} or a JSON Lines file"
            ),
        )
    if data is not None:
        raise UsageError(
            f"The task {name!r} is a file of its own", hint="drop the copy", setting="data"
        )
    return _checked(name, jsonl(path, check))


def open_prompts(name: str | None) -> Task:
    """Open a file of prompts, with or without right answers, as a task.

    The name "-" is stdin. None stands for the first `EVERYDAY` of the bundled everyday prompts.
    """
    if name is None:
        return everyday.first(EVERYDAY)
    return _checked(name, prompts(from_home(name)))


def with_calibration(
    name: str,
    use: Use,
    *,
    data: Path | None,
    check: Grading | None,
    limit: int | None,
    calibration: int | None,
    calibration_data: Path | None = None,
    max_tokens: int | None = None,
    known: bool = True,
    calibrated: bool = True,
) -> tuple[Task, Task]:
    """Open a task; return its first `limit` questions, and `calibration` others for thresholds.

    `data`, `check` and `use` are as in `open_task`. None stands for all questions (`limit`), for
    100, or 300 if `use` is "train" (`calibration`), and for the task's maximum length of an answer
    (`max_tokens`). With `known` a question without a right answer raises `UsageError`; with `known`
    or for "train" so does one whose reply a person must grade; so do options that do not fit.

    The calibration questions are the last ones of the file `calibration_data` that the first part
    lacks. Without it they come from the task's calibration split; else, if `use` is "test", from
    the end of its train split; else (always with `data`) from the end of the questions opened, by
    default at most a fifth. The first part then lacks that end; but if `calibrated` is False (no
    threshold is needed) and `calibration` None, it keeps them, and the parts may overlap.
    """
    counts = {"limit": limit, "calibration": calibration, "max_tokens": max_tokens}
    for setting, value in counts.items():
        if value is not None and value < 1:
            what = setting.replace("_", "-")
            raise UsageError(f"The {what} must be 1 or more, not {value}.", setting=setting)
    task = open_task(name, data=data, check=check, use=use)
    if calibration_data is None:
        apart = calibrated or calibration is not None
        both = _pair(task, name, use, data, limit, calibration, apart=apart)
    else:
        used, others = task.first(limit), _beside(name, calibration_data, check)
        both = used, _apart(others, used, calibration or USUAL[use])
    if known and not all(task.known for task in both):
        raise UsageError(
            f"The task {name!r} has no right answers", hint="give each question its answer"
        )
    if (known or use == "train") and any(task.to_read for task in both):
        raise UsageError(
            f"The task {name!r} has questions whose replies a person must read",
            hint="leave them out",
        )
    if max_tokens is None:
        return both
    used, held_out = (replace(task, max_tokens=max_tokens) for task in both)
    return used, held_out


def _pair(
    task: Task,
    name: str,
    use: Use,
    data: Path | None,
    limit: int | None,
    calibration: int | None,
    *,
    apart: bool,
) -> tuple[Task, Task]:
    """Return the questions to use and those to calibrate on, if no other file is named."""
    usual, splits = calibration or USUAL[use], _splits(name, data)
    if "calibration" in splits:
        held_out = _checked(name, TASKS.load(name)().open("calibration"))
        return task.first(limit), held_out.first(usual)
    if use == "test" and "train" in splits:
        return task.first(limit), _split(open_task(name, use="train"), usual)[1]
    fifth = max(1, len(task.questions) // 5)
    count = calibration or min(usual, fifth)
    if not apart:  # named all the same, so that a folder of answers is known again
        return task.first(limit), replace(task, questions=task.questions[-count:])
    rest, held_out = _split(task, count)
    return rest.first(limit), held_out


def _source(name: str) -> TaskSource | None:
    return TASKS.load(name)() if name in TASKS else None


def _splits(name: str, data: Path | None) -> tuple[str, ...]:
    """Return the splits of a task that can be opened by name; none for a local copy."""
    source = _source(name)
    return () if source is None or data is not None else source.splits


def _opened(source: TaskSource, use: Use, data: Path | None, check: Grading | None) -> Task:
    unused = "check" if check else "data" if data is not None and not source.local else None
    if unused:
        raise UsageError(
            f"The task {source.name} has its own questions and grading",
            hint=f"drop the {unused}",
            setting=unused,
        )
    if data is None and use not in source.splits:
        raise UsageError(f"The task {source.name} has no {use} split", hint="name another task")
    return source.open(use, data)


def _checked(name: str, task: Task) -> Task:
    if not task.questions:
        raise UsageError(f"The task {name!r} has no questions.")
    if len({question.id for question in task.questions}) < len(task.questions):
        raise UsageError(f"Two questions of {name!r} have the same id", hint="make them differ")
    return task


def _beside(name: str, data: Path, check: Grading | None) -> Task:
    """Open another file of the same task."""
    if name in TASKS:
        return open_task(name, data=data, check=check)
    return open_task(str(data), check=check)


def _apart(other: Task, used: Task, calibration: int) -> Task:
    """Return the last `calibration` of `other`'s questions that are not in `used`."""
    texts = {question.text for question in used.questions}
    rest = tuple(question for question in other.questions if question.text not in texts)
    if not rest:
        raise UsageError(
            "All calibration questions are also evaluated",
            hint="name a file with others",
            setting="calibration_data",
        )
    return replace(other, questions=rest[-calibration:])


def _split(task: Task, calibration: int) -> tuple[Task, Task]:
    """Split off the last `calibration` questions; no prompt is in both parts."""
    held_out = task.questions[-calibration:]
    apart = {question.text for question in held_out}
    before = task.questions[: -len(held_out)]
    rest = tuple(question for question in before if question.text not in apart)
    if not rest:
        raise UsageError(
            f"{len(task.questions)} questions are too few to keep {calibration} for calibration",
            hint="calibrate on fewer",
            setting="calibration",
        )
    return replace(task, questions=rest), replace(task, questions=held_out)
