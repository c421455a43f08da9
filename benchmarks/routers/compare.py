"""Every router on every set of questions; what is done is kept, and gone on from."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.routers import plan as plans
from benchmarks.routers.plan import Entry, Plan, split_of
from benchmarks.routers.shards import CLOUD, EDGE, OTHERS, Answered, Ask, Shards, Wanted
from benchmarks.routers.thresholds import Search, search
from benchmarks.routers.trainings import fit_all, identity, opened, prepare, unfitted
from edgewise_lab.evaluation.store import append, lock_folder, read
from edgewise_lab.evaluation.systems import Outcome, query_level

Mode = Literal["one", "each"]
"""One threshold for all families, or one for each."""

MODES: tuple[Mode, ...] = ("one", "each")


class Cut(NamedTuple):
    """A threshold: of a router, for a share, on the questions of some families of a set."""

    entry: Entry
    share: float
    held: str
    families: tuple[str, ...]


class _Threshold(msgspec.Struct, frozen=True):
    cut: str
    threshold: float


class Compared:
    """All thresholds and answers of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.families = {name: plan.task(split_of(name)).families for name in plan.sets}
        self._identities: dict[Entry, str] = {}
        self._thresholds: dict[str, float] = {}
        self._answers: dict[str, dict[str, Answered]] = {}
        self._order: dict[str, list[tuple[str, str]]] = {
            name: [(q.id, q.family) for q in plan.task(split_of(name)).questions]
            for name in plan.sets
        }

    def run(self) -> None:
        """Train, set thresholds, answer."""
        lock_folder(self.plan.work, manifest(self.plan))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("texts and labels", total=None)
            routers = [e for n in self.plan.sets for e in self.plan.entries(n) if e.trained]
            routers += [e for n in self.plan.sets for e in self.plan.queries(n)]
            if left := unfitted(routers, self.plan):
                prepare(self.plan)
                progress.update(bar, description="fits")
                fit_all(left, self.plan)
            path = self.plan.work / "thresholds.jsonl"
            self._thresholds = {line.cut: line.threshold for line in read(path, _Threshold)}
            with Shards(self.plan) as shards:
                progress.update(bar, description="thresholds")
                cases = [(n, family) for n in self.plan.sets for family in self.families[n]]
                cuts = {case: self._cuts(*case) for case in cases}
                every = [cut for own in cuts.values() for cut in own]
                self._set_thresholds([c for c in every if c.held == "calibration"], shards)
                for (name, family), own in cuts.items():
                    progress.update(bar, description=f"answers: {name}, {family}")
                    self._set_thresholds([c for c in own if c.held == name], shards)
                    self._answer(name, family, own, shards)

    def names(self) -> list[str]:
        """The rows with a share, in the order of the tables."""
        more = (*plans.UNTRAINED, plans.QUERY, plans.QUERY_TRAINED)
        gates = (plans.THREE_TOKENS, plans.POSITION)
        return [*self.plan.labels, *((*more, *gates) if self.plan.baselines else ())]

    def outcomes(
        self, name: str, mode: Mode, row: str, share: float, inputs: tuple[str, ...]
    ) -> dict[str, list[list[Outcome]]]:
        """By family, a list of outcomes for each seed of the row."""
        if row in OTHERS:
            return {f: [self._others(name, row, f)] for f in self.families[name]}
        if row in (plans.QUERY, plans.QUERY_TRAINED):
            return self._query_level(name, mode, row, share)
        seeds = self.seeds(row)
        return {
            family: [
                self._pair(name, mode, Entry(row, seed, inputs=inputs), share, family)
                for seed in range(seeds)
            ]
            for family in self.families[name]
        }

    def seeds(self, row: str) -> int:
        """How often a row's router was trained."""
        once = (*plans.UNTRAINED, plans.POSITION, plans.QUERY, *OTHERS)
        return 1 if row in once else self.plan.seeds

    def _pair(
        self, name: str, mode: Mode, entry: Entry, share: float, family: str
    ) -> list[Outcome]:
        if name == "left-out" and entry.trained:
            entry = entry._replace(without=family)
        cut = self._cut(name, mode, entry, share, family)
        key = self._pair_key(entry, self._thresholds[self._cut_key(cut)])
        return self._of(name, family, key)

    def _others(self, name: str, row: str, family: str) -> list[Outcome]:
        return self._of(name, family, row)

    def _of(self, name: str, family: str, key: str) -> list[Outcome]:
        answers = self._answers[split_of(name)]
        return [answers[q].outcomes[key] for q, f in self._order[name] if f == family]

    def _query_level(
        self, name: str, mode: Mode, row: str, share: float
    ) -> dict[str, list[list[Outcome]]]:
        families = self.families[name]
        groups = [families] if mode == "one" else [(family,) for family in families]
        found: dict[str, list[list[Outcome]]] = {family: [] for family in families}
        for seed in range(self.seeds(row)):
            for group in groups:
                order = [(q, f) for q, f in self._order[name] if f in group]
                answers = self._answers[split_of(name)]
                edge, cloud = (
                    [answers[q].outcomes[row] for q, _ in order] for row in (EDGE, CLOUD)
                )
                scores = None
                if row == plans.QUERY_TRAINED:
                    scores = [
                        answers[q].queries[
                            self._query_key(Entry(row, seed, f if name == "left-out" else ""))
                        ]
                        for q, f in order
                    ]
                chosen = query_level(edge, cloud, share, scores)
                for family in group:
                    found[family].append([o for o in chosen if o.family == family])
        return found

    def _cut(self, name: str, mode: Mode, entry: Entry, share: float, family: str) -> Cut:
        """Which questions set a threshold.

        Shifted sets have no calibration split: there a family's threshold is set on the very
        questions, which takes what the cloud writes and no grading.
        """
        if mode == "each":
            held = "calibration" if split_of(name) == "test" else name
            return Cut(entry, share, held, (family,))
        every = self.plan.task("calibration").families
        left = tuple(f for f in every if f != family) if name == "left-out" else every
        return Cut(entry, share, "calibration", left)

    def _cuts(self, name: str, family: str) -> list[Cut]:
        """The thresholds that a set's questions of one family are answered with."""
        return [
            self._cut(name, mode, entry, share, family)
            for entry in self.plan.entries(name)
            if entry.without in ("", family)
            for share in self.plan.shares_of(entry)
            for mode in MODES
        ]

    def _set_thresholds(self, cuts: Sequence[Cut], shards: Shards) -> None:
        """All searches side by side, so that every process has work."""
        left = [c for c in dict.fromkeys(cuts) if self._cut_key(c) not in self._thresholds]
        if not left:
            return
        held = left[0].held
        routers = list(dict.fromkeys((c.entry, c.families) for c in left))
        scores = dict(zip(routers, shards.scores(held, routers), strict=True))
        running: dict[Cut, Search] = {}
        asks: dict[Cut, float] = {}
        for cut in left:
            running[cut] = search(cut.share, scores[cut.entry, cut.families])
            asks[cut] = next(running[cut])
        while asks:
            asked = [Ask(cut.entry, t, cut.families) for cut, t in asks.items()]
            replies = dict(zip(asks, shards.shares(held, asked), strict=True))
            asks = {}
            for cut, share in replies.items():
                try:
                    asks[cut] = running[cut].send(share)
                except StopIteration as stop:
                    self._keep(cut, stop.value)
        if held == "calibration":
            # Answers to shifted questions go on along the trees that set their thresholds.
            shards.forget()

    def _keep(self, cut: Cut, threshold: float) -> None:
        key = self._cut_key(cut)
        append(self.plan.work / "thresholds.jsonl", _Threshold(key, threshold))
        self._thresholds[key] = threshold

    def _answer(self, name: str, family: str, cuts: Sequence[Cut], shards: Shards) -> None:
        """A family's questions by all that has to answer them."""
        path = self.plan.work / "answers" / f"{split_of(name)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = self._answers.setdefault(split_of(name), {})
        if not known:
            for line in read(path, Answered):
                _merge(known, line)
        pairs = [(cut.entry, self._thresholds[self._cut_key(cut)]) for cut in cuts]
        queries = [entry for entry in self.plan.queries(name) if entry.without in ("", family)]
        wanted = Wanted(
            {self._pair_key(*pair): pair for pair in pairs},
            OTHERS if self.plan.baselines else (EDGE, CLOUD),
            {self._query_key(entry): entry for entry in queries},
        )
        for chunk in shards.answers(name, family, wanted, known):
            for line in chunk:
                append(path, line)
                _merge(known, line)

    def _identity(self, entry: Entry) -> str:
        if entry not in self._identities:
            self._identities[entry] = identity(entry, self.plan)[:48]
        return self._identities[entry]

    def _pair_key(self, entry: Entry, threshold: float) -> str:
        return f"{entry.key}|{self._identity(entry)}|{threshold!r}"

    def _query_key(self, entry: Entry) -> str:
        return f"{entry.key}|{self._identity(entry)}"

    def _cut_key(self, cut: Cut) -> str:
        count = self.plan.calibration if cut.held == "calibration" else self.plan.questions
        where = f"{cut.held}|{','.join(cut.families)}|{count}"
        return f"{cut.entry.key}|{self._identity(cut.entry)}|{cut.share!r}|{where}"


def _merge(known: dict[str, Answered], line: Answered) -> None:
    before = known.get(line.question, Answered(line.question, {}, {}))
    known[line.question] = Answered(
        line.question, before.outcomes | line.outcomes, before.queries | line.queries
    )


def manifest(plan: Plan) -> Mapping[str, object]:
    """What everything in the folder depends on."""
    with ExitStack() as stack:
        edge, cloud = opened(stack)
        models = {"edge": edge.fingerprint(), "cloud": cloud.identity()}
    digest = hashlib.sha256()
    for split in ("train", "calibration"):
        digest.update(msgspec.json.encode(plan.task(split)))
    return models | {"format": 1, "questions": digest.hexdigest()}
