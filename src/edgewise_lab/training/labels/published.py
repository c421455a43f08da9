"""Labels of this project, and R2R's."""

from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import (
    AGREES,
    is_right,
    named_choice,
    named_number,
    overlap,
)
from edgewise_lab.training.collect import Text
from edgewise_lab.training.fit import Objective
from edgewise_lab.training.labels.base import Case, Label, Labelling, Writer


class Value(Label):
    """1 where the cloud ends right from its own token and wrong from the edge's.

    The cloud is greedy, so its branch is its own answer: only the edge's tokens are rolled out, and
    only where they differ.
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
    """How much the end of the cloud's answer changes if it contains the edge's token.

    The cloud goes on from the edge's token; a choice or a number is the same or is not, of other
    answers it is the part of the content words that only one has. Nobody need know what is right.
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
        """Returns 0 for the same conclusion, up to 1."""
        if question.check in ("choice", "number"):
            return float(not same_end(question, one, other))
        return 1.0 - overlap(question, one, other)


class Rescue(Label):
    """1 where the edge's own answer ends wrong, and right once the cloud has written this token.

    The edge goes on after the cloud's token, as it does in use, from texts that it writes in use.
    The cloud writes no answers: it reads each of the edge's once, and the edge is rolled out where
    the cloud would have written another token, of wrong answers alone.
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


class R2R(Final):
    """R2R's divergence (arXiv 2505.21600), along the cloud's greedy answer.

    0 where the edge would write the same token, or where the cloud, going on from the edge's, comes
    to the same conclusion; else 1. Fitted by cross-entropy in which both classes weigh alike. Not
    as published: there a third model compares the sentences.
    """

    name = "r2r"
    described = "R2R's divergence from the cloud's answer, judged by the outcome"
    objective: Objective = "balanced-cross-entropy"

    def difference(self, question: Question, one: str, other: str) -> float:
        return float(not same_end(question, one, other))


def same_end(question: Question, one: str, other: str) -> bool:
    """Whether two answers conclude alike, be that right or wrong."""
    match question.check:
        case "choice":
            return named_choice(question, one) == named_choice(question, other)
        case "number":
            return named_number(question, one) == named_number(question, other)
        case "exact":
            return one.strip() == other.strip()
        case "contains" | "regex" | "code" | "json" | "read":
            return is_right(question, one) == is_right(question, other)
        case "words":
            return overlap(question, one, other) >= AGREES
