"""A label that is made where the pair will be: on answers that the edge began.

`value` reads the cloud's answers, and a router that learns from them has never seen the edge's own
turns of phrase. Here every question is walked through as the oracle does: the edge writes, and
the cloud's token is taken where the edge's would end wrong whoever went on. The texts are these
walks; a consult is worth it exactly where the edge would have written something else.
"""

from contextlib import closing
from pathlib import Path

from edgewise.edge.base import EdgeModel
from edgewise.evaluation.journal import append, read
from edgewise.evaluation.oracle import Oracle
from edgewise.evaluation.tasks.base import Task
from edgewise.training.collect import Sample


def walk(task: Task, edge: EdgeModel, cloud: EdgeModel, folder: Path) -> None:
    """Write `folder/answers.jsonl`, what collecting would ask the cloud for; goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "answers.jsonl"
    known = {sample.question for sample in read(path, Sample)}
    with closing(Oracle(edge, cloud, task.max_tokens)) as oracle:
        for question in task.questions:
            if question.id not in known:
                found = oracle.trace(question)
                append(path, Sample(question.id, found.prompt, found.ids, (), found.right))
