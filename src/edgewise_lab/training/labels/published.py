"""The labels that come with Edgewise."""

from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import named_choice, named_number, overlap
from edgewise_lab.training.collect import Text
from edgewise_lab.training.labels.base import Case, Label, Labelling, Writer


class Value(Label):
    """Label that is 1 where the edge's token would turn the cloud's right answer wrong, else 0.

    The texts are the cloud model's greedy answers. Where the edge model would write another token,
    the cloud model continues after that token, which shows how the answer ends with it.
    """

    name = "value"
    described = "value of a consult, by the cloud's rollouts"
    writers: frozenset[Writer] = frozenset({"cloud"})

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        if case.sample.right:
            at = case.mismatches
            kept = yield from case.right("cloud", [(i, case.proposed[i]) for i in at])
            for i, right in zip(at, kept, strict=True):
                values[i] = float(not right)
        return values


class Final(Label):
    """Label for how much the edge's token at a position would change what the cloud's answer says.

    The cloud model continues after the edge's token, and the two answers are compared. Two choices
    or numbers are the same (0) or not (1); for other answers the value is the share of their
    content words that only one of them has. No right answer need be known.
    """

    name = "final"
    described = "how far the cloud's own answer changes after the edge's token"
    writers: frozenset[Writer] = frozenset({"cloud"})

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        written = yield from case.branches("cloud", [(i, case.proposed[i]) for i in at])
        own = text_of(case.tokenizer, case.sample.ids)
        for i, ids in zip(at, written, strict=True):
            values[i] = self.difference(case.question, own, text_of(case.tokenizer, ids))
        return values

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
    """Label that is 1 where the cloud's token would turn the edge's wrong answer right, else 0.

    The texts are the edge model's own answers. The cloud model only reads them, to say which token
    it would have written at each position. Where that token differs in a wrong answer, the edge
    model continues after it.
    """

    name = "rescue"
    described = "the cloud's token turns the edge's own wrong answer into a right one"
    text: Text = "own"
    writers: frozenset[Writer] = frozenset({"edge"})

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        if not case.sample.right:
            cloud, ids = case.sample.cloud, case.sample.ids
            at = [i for i, token in enumerate(cloud) if token != ids[i]]
            right = yield from case.right("edge", [(i, cloud[i]) for i in at])
            for i, value in zip(at, right, strict=True):
                values[i] = float(value)
        return values
