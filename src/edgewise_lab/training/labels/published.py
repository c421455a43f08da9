"""The labels that come with Edgewise."""

from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import named_choice, named_number, overlap
from edgewise_lab.training.collect import Text
from edgewise_lab.training.labels.base import Case, Label, Labelling, Writer


class Value(Label):
    """1 where the edge's token would turn the cloud's right answer wrong, else 0.

    Where the models' tokens differ, the edge's is put into the cloud's answer; the cloud continues.
    """

    name = "value"
    described = "value of a consult, by the cloud's rollouts"
    writers: frozenset[Writer] = frozenset({"cloud"})

    def of(self, case: Case) -> Labelling:
        at = case.mismatches if case.sample.right else []
        kept = yield from case.right("cloud", [(i, case.proposed[i]) for i in at])
        return case.values(at, (not right for right in kept))


class Final(Label):
    """How much the edge's token would change what the cloud's answer says, from 0 to 1.

    Where the models' tokens differ, the edge's is put into the cloud's answer; the cloud continues.
    A choice or number is the same (0) or not (1), other answers differ by 1 - `overlap`.
    """

    name = "final"
    described = "how far the cloud's own answer changes after the edge's token"
    writers: frozenset[Writer] = frozenset({"cloud"})

    def of(self, case: Case) -> Labelling:
        at = case.mismatches
        written = yield from case.branches("cloud", [(i, case.proposed[i]) for i in at])
        own, *others = (text_of(case.tokenizer, ids) for ids in (case.sample.ids, *written))
        return case.values(at, (self.difference(case.question, own, one) for one in others))

    def difference(self, question: Question, one: str, other: str) -> float:
        """Return how much two answers to `question` differ: 0 for the same conclusion, up to 1."""
        match question.check:
            case "choice":
                return float(named_choice(question, one) != named_choice(question, other))
            case "number":
                return float(named_number(question, one) != named_number(question, other))
            case _:
                return 1.0 - overlap(question, one, other)


class Rescue(Label):
    """1 where the cloud's token would turn the edge's wrong answer right, else 0.

    The cloud only reads the edge's answer. Where the models' tokens differ, the cloud's is put in,
    and the edge continues.
    """

    name = "rescue"
    described = "the cloud's token turns the edge's own wrong answer into a right one"
    text: Text = "own"
    writers: frozenset[Writer] = frozenset({"edge"})

    def of(self, case: Case) -> Labelling:
        cloud, ids = case.sample.cloud, case.sample.ids
        differ = [i for i, token in enumerate(cloud) if token != ids[i]]
        at = [] if case.sample.right else differ
        right = yield from case.right("edge", [(i, cloud[i]) for i in at])
        return case.values(at, right)
