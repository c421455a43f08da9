"""From what a user writes to a task."""

from pathlib import Path

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
