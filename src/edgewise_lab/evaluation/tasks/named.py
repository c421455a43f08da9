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

    `data` is a local copy of the task's published file, `use` its split; `check` is how the answers
    of a JSON Lines file are graded (None: see `suited`). Raises `UsageError` if there is no such
    task or file, an option does not fit it, it has no questions, or two of them have the same id.
    """
    if name in TASKS:
        return _checked(name, _opened(TASKS.load(name)(), use, data, check))
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
    """Return the prompts in a file ("-": stdin), or (None) the first 20 bundled everyday ones."""
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

    Raises `UsageError` for options that do not fit; with `known` for a question without a right
    answer; with `known` or for "train" for one whose reply a person must grade.

    The calibration questions (default: 300 for "train", else 100) are the last ones of the file
    `calibration_data` that the first part lacks. Without such a file they come from the task's
    calibration split; else, if `use` is "test", from the end of its train split; else (always with
    `data`) from the end of the questions opened, by default at most a fifth. The first part then
    lacks that end, unless no threshold is needed (`calibrated` is False) and no number is given.
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
        used = task.first(limit)
        if name in TASKS:
            others = open_task(name, data=calibration_data, check=check)
        else:
            others = open_task(str(calibration_data), check=check)
        seen = {question.text for question in used.questions}
        rest = tuple(question for question in others.questions if question.text not in seen)
        if not rest:
            raise UsageError(
                "All calibration questions are also evaluated",
                hint="name a file with others",
                setting="calibration_data",
            )
        both = used, replace(others, questions=rest[-(calibration or USUAL[use]) :])
    if known and not all(task.known for task in both):
        raise UsageError(
            f"The task {name!r} has no right answers", hint="give each question its answer"
        )
    if (known or use == "train") and any(task.to_read for task in both):
        raise UsageError(
            f"The task {name!r} has questions whose replies a person must read",
            hint="leave them out",
        )
    used, held_out = (replace(one, max_tokens=max_tokens or one.max_tokens) for one in both)
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
    usual = calibration or USUAL[use]
    splits = TASKS.load(name)().splits if name in TASKS and data is None else ()
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
