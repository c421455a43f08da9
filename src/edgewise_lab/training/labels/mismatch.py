"""Where the two models differ."""

from edgewise_lab.training.labels.base import Case, Label, Labelling


class Mismatch(Label):
    """1 where the edge would have written another token than the cloud did. No rollouts.

    What R2R (arXiv 2505.21600) calls "different", before its judge: see `R2R`.
    """

    name = "mismatch"
    described = "the edge's token differs from the cloud's"

    def of(self, case: Case) -> Labelling:
        yield from ()
        differs = set(case.mismatches)
        return [float(at in differs) for at in range(len(case.proposed))]
