"""R2R's divergence."""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import extract_choice, extract_number, is_right
from edgewise_lab.training.data import Objective
from edgewise_lab.training.labels import judge as judges
from edgewise_lab.training.labels.base import Case, Label, Labelling, Trial, Writer

Judge = Literal["cloud", "outcome"]
_JUDGES = ("cloud", "outcome")

LONGEST = 64
"""Tokens after which a sentence is taken as it stands."""


class R2R(Label):
    """R2R's divergence (arXiv 2505.21600), along the cloud's greedy answer.

    As published: 0 where the edge would write the same token; where it would not, the cloud goes on
    from the edge's token to the end of the sentence, and a judge compares that with the cloud's
    own sentence: 0 where the difference is neutral, 1 where the two diverge. Fitted by
    cross-entropy in which both classes weigh alike.

    Not as published: the judge is the cloud model itself (there: a third, larger one), asked with
    a prompt of our own; it may be the `outcome` instead, where the cloud goes on to the end of the
    answer and the two diverge where its conclusions do. A judge's answer that is neither yes nor
    no counts as divergent. A sentence ends by its text, not by a list of tokens.
    """

    writers: frozenset[Writer] = frozenset({"cloud"})
    objective: Objective = "balanced-cross-entropy"
    options = ("judge",)

    def __init__(self, judge: Judge = "cloud") -> None:
        if judge not in _JUDGES:
            raise UsageError(
                f"There is no judge {judge!r}",
                hint=f"it is {' or '.join(_JUDGES)}",
                setting="judge",
            )
        self.name = "r2r" if judge == "cloud" else f"r2r-{judge}"
        self.described = f"R2R's divergence from the cloud's answer, judged by the {judge}"
        self._judge = judge

    def trial(self, tokenizer: Tokenizer) -> Trial:
        if self._judge == "cloud":
            yield from judges.trial(tokenizer)

    def of(self, case: Case) -> Labelling:
        return self._judged(case) if self._judge == "cloud" else self._concluded(case)

    def _judged(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        branches = [(i, case.proposed[i]) for i in at]
        written = yield from case.branches("cloud", branches, most=LONGEST)
        pairs = {i: _parted(case, i, ids) for i, ids in zip(at, written, strict=True)}
        pairs = {i: pair for i, pair in pairs.items() if pair.first != pair.second}
        replies = yield [judges.asked(case.tokenizer, pair) for pair in pairs.values()]
        for i, reply in zip(pairs, replies, strict=True):
            values[i] = float(judges.same(case.tokenizer, reply) is not True)
        return values

    def _concluded(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        branches = [(i, case.proposed[i]) for i in at]
        written = yield from case.branches("cloud", branches)
        own = text_of(case.tokenizer, case.sample.ids)
        for i, ids in zip(at, written, strict=True):
            values[i] = float(not same_end(case.question, own, text_of(case.tokenizer, ids)))
        return values


def _parted(case: Case, at: int, other: Sequence[int]) -> judges.Drafts:
    """The sentence that parts at `at`, as the cloud wrote it and as `other` ids have it."""
    texts = (case.sample.ids[:at], case.sample.ids[: at + 1 + LONGEST], other)
    begun, first, second = (text_of(case.tokenizer, ids) for ids in texts)
    return judges.Drafts(case.question.prompt, *judges.sentences(begun, first, second))


def same_end(question: Question, one: str, other: str) -> bool:
    """Whether two answers conclude alike, be that right or wrong."""
    match question.check:
        case "choice":
            assert question.choices is not None
            return extract_choice(one, question.choices) == extract_choice(other, question.choices)
        case "number":
            number = extract_number(one)
            if number is None or extract_number(other) is None:
                return number is extract_number(other)
            return is_right(replace(question, answer=number), other)
        case "exact":
            return one.strip() == other.strip()
        case "regex":
            return is_right(question, one) == is_right(question, other)
