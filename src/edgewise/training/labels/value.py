"""What a consult changes of the outcome."""

from edgewise.errors import UsageError
from edgewise.sampling import Sampling
from edgewise.training.labels.base import Case, Label, Labelling, Writer


class Value(Label):
    """P(right | the cloud's token) - P(right | the edge's token), the cloud going on from both.

    With one rollout the cloud is greedy, and its branch is its own answer, so only the edge's
    tokens are rolled out, and only where they differ; with more it draws both branches.
    """

    writers: frozenset[Writer] = frozenset({"cloud"})
    options = ("rollouts",)

    def __init__(self, rollouts: int = 1) -> None:
        if rollouts < 1:
            raise UsageError(f"The rollouts must be 1 or more, not {rollouts}.", setting="rollouts")
        self.name = "value" if rollouts == 1 else f"value-{rollouts}"
        self.described = f"value of a consult, {rollouts} rollout(s) of the cloud a branch"
        self._rollouts = rollouts

    def of(self, case: Case) -> Labelling:
        return self._greedy(case) if self._rollouts == 1 else self._drawn(case)

    def _greedy(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        if case.sample.right:
            at = case.mismatches
            edges = [(i, case.proposed[i]) for i in at]
            kept = yield from case.right("cloud", edges, Sampling())
            for i, right in zip(at, kept, strict=True):
                values[i] = float(not right)
        return values

    def _drawn(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        edges = [(i, case.proposed[i]) for i in at]
        clouds = [(i, case.sample.ids[i]) for i in at]
        for draw in range(self._rollouts):
            drawn = Sampling(temperature=1.0, seed=draw)
            right = yield from case.right("cloud", [*edges, *clouds], drawn)
            for i, edge, cloud in zip(at, right[: len(at)], right[len(at) :], strict=True):
                values[i] += (cloud - edge) / self._rollouts
        return [min(1.0, max(0.0, value)) for value in values]
