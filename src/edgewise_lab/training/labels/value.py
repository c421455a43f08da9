"""What a consult changes of the outcome."""

from edgewise.errors import UsageError
from edgewise.sampling import Sampling
from edgewise_lab.training.labels.base import Case, Label, Labelling, Writer


class Value(Label):
    """P(right | the cloud's token) - P(right | the edge's token), the cloud going on from both.

    With one rollout the cloud is greedy, and its branch is its own answer, so only the edge's
    tokens are rolled out, and only where they differ. With more it draws both branches, from
    `seed` on: rollout k of a branch is drawn with the seed `seed` times rollouts plus k, whatever
    else is rolled out beside it. Where the edge's token does better the value is 0.
    """

    writers: frozenset[Writer] = frozenset({"cloud"})
    options = ("rollouts", "seed")

    def __init__(self, rollouts: int = 1, seed: int = 0) -> None:
        if rollouts < 1:
            raise UsageError(f"The rollouts must be 1 or more, not {rollouts}.", setting="rollouts")
        if seed < 0:
            raise UsageError(f"The seed must be 0 or more, not {seed}.", setting="seed")
        drawn = rollouts > 1
        self.name = f"value-{rollouts}" if drawn else "value"
        self.name += f"-seed-{seed}" if drawn and seed else ""
        self.described = f"value of a consult, {rollouts} rollout(s) of the cloud a branch"
        self.described += f", drawn with seed {seed}" if drawn else ""
        self._rollouts, self._seed = rollouts, seed

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
        first = self._seed * self._rollouts
        for seed in range(first, first + self._rollouts):
            drawn = Sampling(temperature=1.0, seed=seed)
            right = yield from case.right("cloud", [*edges, *clouds], drawn)
            for i, edge, cloud in zip(at, right[: len(at)], right[len(at) :], strict=True):
                values[i] += (cloud - edge) / self._rollouts
        return [min(1.0, max(0.0, value)) for value in values]
