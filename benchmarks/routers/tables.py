"""What was found, in Markdown."""

from collections.abc import Sequence

from benchmarks.routers import plan as plans
from benchmarks.routers.compare import MODES, Compared, Mode
from benchmarks.routers.pooled import Seeds, pooled_difference, pooled_gap
from benchmarks.routers.shards import CLOUD, COMMIT, EDGE, ORACLE
from edgewise_lab.evaluation.systems import Outcome, cloud_share
from edgewise_lab.tables import line

READINGS = ("right", "strict")
GATE_LIMIT, ORACLE_LIMIT = 0.40, 0.95

TITLES = {
    "test": "Ordinary questions",
    "frames": "Frames and a style of answers that no router was trained on",
    "facts": "Facts that no router was trained on",
    "left-out": "Each family with routers that were trained without it",
}
ONE = (
    "One threshold for all families; gap recovered in percent, averaged, then at the largest share "
    "what is right, the share realised, and each family."
)
EACH = (
    "A threshold for each family, so that all routers spend alike in it; gap recovered in percent, "
    "averaged, then of each family at the largest share."
)

ByFamily = dict[str, list[list[Outcome]]]


class Tables:
    """The tables of a comparison; `inputs` are those of the trained routers in them."""

    def __init__(self, found: Compared, inputs: tuple[str, ...] = plans.INPUTS) -> None:
        self._found, self._inputs = found, inputs

    def all(self) -> list[str]:
        """A table for every set and both ways of setting thresholds; differences; gates."""
        lines: list[str] = []
        for name in self._found.plan.sets:
            lines += ["", f"### {TITLES[name]}", "", *self._alone(name)]
            lines += ["", ONE, "", *self._gaps(name), "", EACH, "", *self._gaps_of_each(name)]
        share = self._found.plan.shares[-1]
        if self._found.plan.baselines:
            label = self._judged()
            lines += ["", f"### {label} above the others at {share:.0%}, points", ""]
            lines += self._differences(label, share)
            lines += ["", "### The gates", "", *self._gates()]
        return lines

    def seeds(
        self, name: str, mode: Mode, row: str, share: float, reading: str, rival: str = EDGE
    ) -> dict[str, Seeds]:
        """By family, for the statistics."""
        told = self._outcomes(name, mode, row, share)
        edge, cloud, other = (
            self._outcomes(name, mode, system, share) for system in (EDGE, CLOUD, rival)
        )
        return {
            family: Seeds(
                _right(edge[family][0], reading),
                [_right(seed, reading) for seed in seeds],
                _right(cloud[family][0], reading),
                _mean_right(other[family], reading),
            )
            for family, seeds in told.items()
        }

    def gap(
        self, name: str, mode: Mode, row: str, share: float, reading: str
    ) -> tuple[float, tuple[float, float]]:
        """Recovered, averaged over the families."""
        return pooled_gap(list(self.seeds(name, mode, row, share, reading).values()))

    def realised(self, name: str, mode: Mode, row: str, share: float) -> float:
        by_family = self._outcomes(name, mode, row, share)
        return cloud_share([o for seeds in by_family.values() for found in seeds for o in found])

    def _judged(self) -> str:
        """The label that is held against the others: the product's own, if it is there."""
        labels = self._found.plan.labels
        return plans.GATES_LABEL if plans.GATES_LABEL in labels else labels[0]

    def _outcomes(self, name: str, mode: Mode, row: str, share: float) -> ByFamily:
        return self._found.outcomes(name, mode, row, share, self._inputs_of(row))

    def _inputs_of(self, row: str) -> tuple[str, ...]:
        return self._inputs if row in self._found.plan.labels else plans.INPUTS

    def _alone(self, name: str) -> list[str]:
        """Both models by themselves, by both readings."""
        families = self._found.families[name]
        lines = line(["right, strictly right", *families, "average"], head=True)
        for row in (EDGE, CLOUD):
            told = self._outcomes(name, "one", row, 0)
            means = [[_mean(told[f][0], reading) for reading in READINGS] for f in families]
            means.append([sum(each) / len(families) for each in zip(*means, strict=True)])
            cells = [f"{100 * right:.1f}, {100 * strict:.1f}%" for right, strict in means]
            lines += line([f"{row} alone", *cells])
        return lines

    def _gaps(self, name: str) -> list[str]:
        """The averages at every share; at the largest by both readings and by family."""
        families, shares = self._found.families[name], self._found.plan.shares
        head = ["router", *(f"{share:.0%}" for share in shares)]
        head += [f"{shares[-1]:.0%}, strictly", "right", "realised", *families]
        lines = line(head, head=True)
        for row in (*self._found.names(), COMMIT, ORACLE):
            asked = shares if row in self._found.names() else (0.0,)
            told = self._outcomes(name, "one", row, asked[-1])
            every = [o for seeds in told.values() for found in seeds for o in found]
            cells = [row, *[""] * (len(shares) - len(asked))]
            cells += [percent(self.gap(name, "one", row, share, "right")) for share in asked]
            cells.append(percent(self.gap(name, "one", row, asked[-1], "strict")))
            cells += [f"{_mean(every, 'right'):.1%}", f"{cloud_share(every):.1%}"]
            cells += [self._gap_at(name, "one", row, asked[-1], family) for family in families]
            lines += line(cells)
        return lines

    def _gaps_of_each(self, name: str) -> list[str]:
        """The averages at every share, and by family at the largest."""
        families, shares = self._found.families[name], self._found.plan.shares
        head = ["router", *(f"{share:.0%}" for share in shares)]
        head += [f"{shares[-1]:.0%}, strictly", *families]
        lines = line(head, head=True)
        for row in self._found.names():
            cells = [row, *(percent(self.gap(name, "each", row, s, "right")) for s in shares)]
            cells.append(percent(self.gap(name, "each", row, shares[-1], "strict")))
            cells += [self._gap_at(name, "each", row, shares[-1], family) for family in families]
            lines += line(cells)
        return lines

    def _gap_at(self, name: str, mode: Mode, row: str, share: float, family: str) -> str:
        """One family's gap recovered, and the share realised in it."""
        seeds = self.seeds(name, mode, row, share, "right")[family]
        own = [o for found in self._outcomes(name, mode, row, share)[family] for o in found]
        return f"{percent(pooled_gap([seeds]))} at {cloud_share(own):.1%}"

    def _differences(self, label: str, share: float) -> list[str]:
        """Points of accuracy above every rival, averaged over families, by set."""
        cases = [(name, mode) for name in self._found.plan.sets for mode in MODES]
        lines = line(["above", *(f"{name} ({mode})" for name, mode in cases)], head=True)
        for rival in (*(row for row in self._found.names() if row != label), COMMIT):
            cells = [
                percent(
                    pooled_difference(
                        list(self.seeds(name, mode, label, share, "right", rival).values())
                    )
                )
                for name, mode in cases
            ]
            lines += line([rival, *cells])
        return lines

    def _gates(self) -> list[str]:
        """What needs no model state must recover little, and the oracle nearly all."""
        name = self._found.plan.sets[0]
        head = ["gate", "asked", "realised", "recovered", "strictly", "a threshold each", "must be"]
        lines = line([*head, "is"], head=True)
        limits = {plans.THREE_TOKENS: f"at most {GATE_LIMIT:.0%}", ORACLE: f">= {ORACLE_LIMIT:.0%}"}
        rows = [(row, share) for row in plans.GATES for share in plans.GATE_SHARES]
        for row, share in [*rows, (ORACLE, 0.0)]:
            gaps = [self.gap(name, "one", row, share, reading) for reading in READINGS]
            gaps.append(self.gap(name, "each", row, share, "right"))
            values = [value for value, _ in gaps]
            met = ""
            if row == plans.THREE_TOKENS:
                met = "met" if max(values) <= GATE_LIMIT else "not met"
            if row == ORACLE:
                spent = self.realised(name, "one", row, share)
                met = "met" if min(values) >= ORACLE_LIMIT and spent <= 0.05 else "not met"
            cells = [row, f"{share:.0%}" if share else ""]
            cells += [f"{self.realised(name, 'one', row, share):.1%}", *map(percent, gaps)]
            lines += line([*cells, limits.get(row, ""), met])
        return lines


def ablation(found: Compared, share: float) -> list[str]:
    """Labels and inputs, one seed each."""
    labels = found.plan.labels
    lines = ["", f"Gap recovered when {share:.0%} is asked for, %:", ""]
    lines += line(["inputs", *labels], head=True)
    for inputs in found.plan.inputs:
        tables = Tables(found, inputs)
        cells = [percent(tables.gap("test", "one", label, share, "right")) for label in labels]
        lines += line([" + ".join(inputs), *cells])
    return lines


def _right(found: Sequence[Outcome], reading: str) -> list[bool]:
    return [getattr(outcome, reading) for outcome in found]


def _mean(found: Sequence[Outcome], reading: str) -> float:
    return sum(_right(found, reading)) / len(found)


def _mean_right(seeds: Sequence[Sequence[Outcome]], reading: str) -> list[float]:
    """Of each question, how often it was right over a rival's seeds."""
    columns = zip(*(_right(found, reading) for found in seeds), strict=True)
    return [sum(column) / len(column) for column in columns]


def percent(figure: tuple[float, tuple[float, float]]) -> str:
    """A figure and its 95 % interval; an end that is open is left out."""
    value, ends = figure
    if value != value:
        return "no gap"
    low, high = (f"{100 * end:.0f}" if abs(end) < 1e6 else "?" for end in ends)
    return f"{100 * value:.0f} ({low} to {high})"
