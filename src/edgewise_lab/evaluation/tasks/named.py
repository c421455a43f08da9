"""Opens the tasks that a user names."""

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
"""Questions that thresholds are set on where nobody says, at most a fifth of a file's."""

EVERYDAY = 20
"""Prompts that are tried where nobody names others."""

TASKS: Registry[type[TaskSource]] = Registry(
    "task",
    "edgewise.tasks",
    {
        "pocketqa": "edgewise_lab.evaluation.tasks.pocketqa:PocketQa",
        "commonsenseqa": "edgewise_lab.evaluation.tasks.commonsenseqa:CommonsenseQa",
        "commonsenseqa-letter": "edgewise_lab.evaluation.tasks.commonsenseqa:CommonsenseQaLetter",
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
    """The questions of a task in `TASKS`, or of a JSON Lines file.

    `data` is a local copy of the published file; `check` how the answers of a JSON Lines file
    are graded (default: `suited`). `use` chooses the split where a task has several. Answers may be
    unknown (`Task.known`).
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
    """The prompts in a file, or with `-` of stdin; None: the first of the bundled everyday ones.

    Not all need an answer.
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
    """The first `limit` questions to use, and `calibration` others to set thresholds with.

    With None these are as `USUAL`. Where right answers must be `known`, a task of prompts alone is
    refused. `max_tokens` is the longest answer to all of them, in the place of the task's own.

    A task with a calibration split has these there. Otherwise they are the last ones of
    `calibration_data`, a file like `data`; without it, of a task to be tested that has a train
    split the end of that, which training leaves out; and of any other its own end. If nothing is
    `calibrated` and no `calibration` is asked for, this own end is among the questions to use, too.
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
    """The questions and the held-out ones, if no file of other questions is named."""
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
    """Splits that can be opened besides; none for a local copy."""
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
    """The questions of another file of the same task."""
    if name in TASKS:
        return open_task(name, data=data, check=check)
    return open_task(str(data), check=check)


def _apart(other: Task, used: Task, calibration: int) -> Task:
    """The last of `other`'s questions, none that is used."""
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
    """The last `calibration` questions apart; no prompt stands on both sides."""
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
