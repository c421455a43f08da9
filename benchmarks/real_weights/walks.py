"""Labels from where the pair will be: texts that the edge began.

`value` reads the cloud's answers. A router that learns from these alone has never seen the edge's
own turns of phrase, nor how it goes on after an answer that the cloud would have ended. A walk is
an answer of the oracle's: the edge writes, and the cloud's token is taken where after the edge's
not even the cloud would end right. So on a walk a consult is worth it exactly where the edge would
have written another token than stands there.
"""

from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from edgewise.edge.base import EdgeModel
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.store import append, read
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.training.collect import Sample
from edgewise_lab.training.labels.base import Case, Labelling
from edgewise_lab.training.labels.published import Value

_WALK = "walk:"


def walked(task: Task) -> Task:
    """The same questions under the names that their walks go by."""
    questions = (replace(question, id=f"{_WALK}{question.id}") for question in task.questions)
    return replace(task, questions=tuple(questions))


def walk(task: Task, edge: EdgeModel, cloud: EdgeModel, path: Path) -> None:
    """Write every question's walk to `path`, as training keeps texts; goes on."""
    known = {sample.question for sample in read(path, Sample)}
    with closing(Oracle(edge, cloud, task.max_tokens)) as oracle:
        for question in walked(task).questions:
            if question.id not in known:
                found = oracle.trace(question)
                append(path, Sample(question.id, found.prompt, found.ids, (), found.right))


class ValueOrWalk(Value):
    """The value of a consult on the cloud's answers, and the oracle's consults on walks."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "value-walk"
        self.described = "value of a consult; on texts that the edge began, the oracle's consults"

    def of(self, case: Case) -> Labelling:
        if not case.question.id.startswith(_WALK):
            return (yield from super().of(case))
        differs = set(case.mismatches)
        return [float(at in differs) for at in range(len(case.proposed))]
