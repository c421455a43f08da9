"""CITER's preference."""

from typing import Literal

from edgewise.errors import UsageError
from edgewise.sampling import Sampling
from edgewise_lab.rollouts.base import Prefix
from edgewise_lab.training.collect import Text
from edgewise_lab.training.labels.base import Case, Label, Labelling, Rollout, Writer

_BY: tuple[Literal["edge", "pair"], ...] = ("edge", "pair")


class Citer(Label):
    """CITER's preference (arXiv 2502.01976), along the reference that comes with a question.

    As published: 0 where the edge would write the reference's token, else 1 where the cloud would.
    Where both would write another, each branch is rolled out to its end, and the cloud is preferred
    where only its branch ends right. In the first round the edge goes on from both branches, in
    the second the pair under the router of the first; that changes nothing but these tokens. The
    router is fitted by cross-entropy to what is preferred, and its threshold sets the share.

    Where both branches end alike the cheaper one is preferred, the edge's; the published code rolls
    out the edge's branch alone, and prefers the cloud where that ends wrong. Not as published: the
    pair of the second round asks at the threshold that was calibrated for a share of 5% (there: a
    confidence of 0.95); the router's inputs and width are those that are asked for (there: the
    hidden state alone, layers of 2h and h); the end token is no part of a reference.
    """

    text: Text = "reference"
    options = ("rounds",)

    def __init__(self, rollouts_by: Literal["edge", "pair"] = "edge") -> None:
        self.name = f"citer-{rollouts_by}"
        self.described = f"CITER's preference, both branches rolled out by the {rollouts_by}"
        self.writers: frozenset[Writer] = frozenset({"cloud", rollouts_by})
        self._by: Writer = rollouts_by

    @classmethod
    def rounds(cls, **options: int) -> list[Label]:
        count = options.get("rounds", len(_BY))
        if not 1 <= count <= len(_BY):
            raise UsageError(f"The rounds must be 1 or {len(_BY)}, not {count}.", setting="rounds")
        return [cls(writer) for writer in _BY[:count]]

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at, ids = case.mismatches, case.sample.ids
        prompt = case.sample.prompt
        replies = yield [Rollout("cloud", Prefix((*prompt, *ids[:i]), 1)) for i in at]
        cloud = {i: reply.ids[0] for i, reply in zip(at, replies, strict=True)}
        both = [i for i in at if cloud[i] not in (ids[i], case.proposed[i])]
        branches = [(i, case.proposed[i]) for i in both] + [(i, cloud[i]) for i in both]
        right = yield from case.right(self._by, branches, Sampling())
        for i in at:
            values[i] = float(cloud[i] == ids[i])
        for i, edge, other in zip(both, right[: len(both)], right[len(both) :], strict=True):
            values[i] = float(other and not edge)
        return values
