"""An evaluation: which systems answer which questions."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.loop.verify import READS_ALONG
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard
from edgewise.routers.named import identity_named, router_named
from edgewise_lab.evaluation.able_reader import AbleReader
from edgewise_lab.evaluation.calibration import Answers, Calibrated, thresholds_for
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.report import CLOUD, EDGE, SERVED, Figures, Row
from edgewise_lab.evaluation.store import Cell, Store, run
from edgewise_lab.evaluation.systems import (
    AsServed,
    CloudAlone,
    CommitPoint,
    Decoded,
    Outcome,
    as_graded_today,
    cloud_identity,
    edge_alone,
    graded,
    paired,
    query_level,
    require_room,
)
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task

VERIFY, PASSAGES = "verify", "passages"
COMMIT_POINT, ORACLE, EXACT = Cell("commit-point"), Cell("oracle"), Cell("exact")
QUERY_LEVEL = "query-level"
SOME_COMMIT_POINTS = Cell("commit-point (choices)")
"""Name of the system if some questions have no choices: the edge alone answers those."""

BASELINES = ("random", "max-prob", "entropy", "margin")
OF_ROUTERS = ("served", "static")
CALIBRATED = ("static", *BASELINES)
"""Those that need thresholds, unless a router's card has them."""
NO_BASELINES = (EDGE.system, CLOUD.system, *OF_ROUTERS)
_BOUNDS = (COMMIT_POINT.system, ORACLE.system)
_ALL = (*NO_BASELINES, *BASELINES, QUERY_LEVEL, VERIFY, EXACT.system, *_BOUNDS)
SYSTEMS = (*_ALL, PASSAGES)
"""Systems by the names that choose them: a router is "served" as users get it, and "static"."""

_Part = tuple[int, Callable[[], dict[Cell, list[Outcome]]]]
"""So many systems, and how their outcomes are made."""


class Contender(msgspec.Struct, frozen=True):
    """A router with what its card says, under the name that figures show.

    `identity` tells it from any other router (`router_identity`): a store on disk keeps its
    outcomes under that, and none without it. `served` are the policies that users get, by share.
    """

    name: str
    router: Router
    card: RouterCard | None = None
    identity: str | None = None
    served: Mapping[float, Policy] = {}

    def thresholds(
        self,
        shares: Sequence[float],
        find: Callable[[Sequence[float]], Mapping[float, Calibrated]],
        store: Store[Any] | None = None,
    ) -> dict[float, float]:
        """Thresholds by share: the card's, an earlier run's, or those of `find`, which it keeps."""
        store, identity = store or Store(None, {}, Outcome), self.identity or ""
        cells = {share: Cell(self.name, share) for share in shares}
        known = {share: self.card.threshold(share) if self.card else None for share in shares}
        for share, cell in cells.items():
            if known[share] is None:
                known[share] = store.threshold(cell, identity)
        lacking = [share for share in shares if known[share] is None]
        for share, point in find(lacking).items() if lacking else ():
            store.set_threshold(cells[share], point.threshold, identity)
            known[share] = point.threshold
        return {share: threshold for share, threshold in known.items() if threshold is not None}


def contender_named(name: str) -> Contender:
    """A router that needs no checkpoint. Raises `UsageError`."""
    return Contender(name, router_named(name), identity=identity_named(name))


class Evaluation:
    """A task, a pair, and what of it is done."""

    def __init__(
        self,
        task: Task,
        calibration: Task,
        *,
        edge: EdgeModel,
        cloud: CloudModel,
        store: Store[Outcome],
        deadline: float | None = None,
        done: Callable[[], None] = lambda: None,
        workers: int = 1,
    ) -> None:
        """`deadline` in seconds a consult (None: as a `Policy`); `done` is called for each answer.

        So many `workers`, threads, answer at a time; the models must have sessions for them.

        Raises `ContextOverflow` for a question that leaves no room for an answer.
        """
        for asked in (task, calibration):
            require_room(asked, edge, cloud)
        self.task, self.calibration = task, calibration
        self.edge, self.cloud = edge, cloud
        self.deadline = deadline
        self.store, self._done, self._workers = store, done, workers

    def run(
        self,
        contenders: Sequence[Contender],
        shares: Sequence[float],
        systems: Collection[str] = SYSTEMS,
    ) -> dict[Cell, list[Outcome]]:
        """Outcomes of the `systems`, in the order of the report.

        Those of edge and cloud are there, too, if an earlier run has kept them all.
        """
        found: dict[Cell, list[Outcome]] = {}
        for _, make in self._parts(contenders, shares, systems, found):
            found |= make()
        return found

    def answers(
        self,
        contenders: Sequence[Contender],
        shares: Sequence[float],
        systems: Collection[str] = SYSTEMS,
    ) -> int:
        """Number of answers of a run."""
        parts = self._parts(contenders, shares, systems, {})
        return sum(count for count, _ in parts) * len(self.task.questions)

    def _parts(
        self,
        contenders: Sequence[Contender],
        shares: Sequence[float],
        systems: Collection[str],
        found: Mapping[Cell, list[Outcome]],
    ) -> Iterator[_Part]:
        """`found` are the outcomes of the parts before."""
        alone = [cell for cell in (EDGE, CLOUD) if cell.system in systems or self._kept(cell)]
        if not self.task.known and CLOUD not in alone:
            alone.append(CLOUD)
        yield len(alone), partial(self.alone, alone)
        if self.cloud.reads_passages:
            # It writes no tokens, so no router asks it for any.
            systems = {*systems} & {EDGE.system, CLOUD.system, QUERY_LEVEL, VERIFY}
        for one in contenders:
            if "served" in systems:
                yield len(one.served), partial(self.served, one)
            if "static" in systems:
                yield len(shares), partial(self.pairs, one, shares)
        shown = {one.name for one in contenders} if "static" in systems else set[str]()
        for name in BASELINES:
            if name in systems and name not in shown:
                yield len(shares), partial(self.pairs, contender_named(name), shares)
        if QUERY_LEVEL in systems and {EDGE, CLOUD} <= found.keys():
            both = found[EDGE], found[CLOUD]
            yield 0, lambda: {Cell(QUERY_LEVEL, at): query_level(*both, at) for at in shares}
        if self.cloud.verifies and VERIFY in systems:
            yield len(shares), partial(self.verified, shares)
        if self.cloud.verifies and PASSAGES in systems:
            able = AbleReader(self.cloud, self.edge.tokenizer)
            yield len(shares), partial(self.verified, shares, PASSAGES, able)
        if self.cloud.verifies and EXACT.system in systems:
            yield 1, self.exact
        if COMMIT_POINT.system in systems and any(one.choices for one in self.task.questions):
            yield 1, self.commit_point
        if ORACLE.system in systems and self.cloud.local is not None:
            yield 1, self.oracle

    def alone(self, cells: Collection[Cell] = (EDGE, CLOUD)) -> dict[Cell, list[Outcome]]:
        """The edge model and the cloud model, each by itself.

        Where right answers are not known, the cloud's own take their place from here on.
        """
        tokens = self.task.max_tokens
        found: dict[Cell, list[Outcome]] = {cell: [] for cell in (EDGE, CLOUD) if cell in cells}
        if CLOUD in found:
            large = CloudAlone(self.cloud, self.edge.tokenizer, tokens)
            replies = self._cell(CLOUD, large.answer)
            self.task = agreeing_task(self.task, {one.question: one.text for one in replies})
            found[CLOUD] = [
                graded(*both) for both in zip(self.task.questions, replies, strict=True)
            ]
        if EDGE in found:
            found[EDGE] = self._cell(EDGE, edge_alone(self.edge, tokens).answer)
        return found

    def served(
        self, contender: Contender, cloud: CloudModel | None = None
    ) -> dict[Cell, list[Outcome]]:
        """A router as users get it. Answers depend on those before; an earlier run's are gone on
        from with what they left of the share. `cloud`: in place of the evaluation's."""
        found: dict[Cell, list[Outcome]] = {}
        store, router = self._store_of(contender), contender.identity or ""
        for share, policy in contender.served.items():
            cell = Cell(contender.name + SERVED, share)
            asked = cloud or self.cloud
            decoder = Decoder(self.edge, router=contender.router, policy=policy, cloud=asked)
            system = AsServed(decoder, self.task.max_tokens, store.last(cell, router))
            found[cell] = self._cell(
                cell, system.answer, store=store, router=router, settle=system.settle
            )
        return found

    def verified(
        self, shares: Sequence[float], name: str = VERIFY, cloud: CloudModel | None = None
    ) -> dict[Cell, list[Outcome]]:
        """Verification as users get it with each share; for a cloud that verifies, or this one."""
        by_share = {share: replace(self._verifying(), cloud_share=share) for share in shares}
        return self.served(Contender(name, READS_ALONG, identity=name, served=by_share), cloud)

    def exact(self) -> dict[Cell, list[Outcome]]:
        """Verification that corrects all that is not the cloud's own choice."""
        policy = replace(self._verifying(), verify="exact")
        decoder = Decoder(self.edge, router=READS_ALONG, policy=policy, cloud=self.cloud)
        return {EXACT: self._cell(EXACT, Decoded(decoder, self.task.max_tokens).answer)}

    def _verifying(self) -> Policy:
        return Policy(verify="on", on_cloud_error="raise", deadline=self.deadline)

    def pairs(self, contender: Contender, shares: Sequence[float]) -> dict[Cell, list[Outcome]]:
        """A router at every share; only what no card and no earlier run has is calibrated."""
        identity, store = contender.identity, self._store_of(contender)
        found: dict[Cell, list[Outcome]] = {}
        answers = Answers(
            contender.router,
            self.calibration,
            edge=self.edge,
            cloud=self.cloud,
            deadline=self.deadline,
            workers=self._workers,
        )
        find = partial(thresholds_for, answers=answers)
        for share, threshold in contender.thresholds(shares, find, store).items():
            cell = Cell(contender.name, share)
            system = Decoded(
                paired(self.edge, contender.router, threshold, self.cloud, deadline=self.deadline),
                self.task.max_tokens,
            )
            found[cell] = self._cell(cell, system.answer, store=store, router=identity or "")
        return found

    def commit_point(self) -> dict[Cell, list[Outcome]]:
        """One consult where the edge names a choice."""
        every = all(question.choices for question in self.task.questions)
        system = CommitPoint(self.edge, self.cloud, self.task.max_tokens)
        cell = COMMIT_POINT if every else SOME_COMMIT_POINTS
        return {cell: self._cell(cell, system.answer)}

    def oracle(self) -> dict[Cell, list[Outcome]]:
        """The oracle, one question at a time; for a cloud in this process."""
        assert self.cloud.local is not None
        with closing(Oracle(self.edge, self.cloud.local, self.task.max_tokens)) as oracle:
            return {ORACLE: self._cell(ORACLE, oracle.answer, workers=1)}

    def _cell(
        self, cell: Cell, answer: Callable[[Question], Outcome], **options: Any
    ) -> list[Outcome]:
        """Every question's outcome; what an earlier run has kept is graded as today."""
        options = {"store": self.store, "workers": self._workers, **options}
        questions = self.task.questions
        found = run(cell, answer, questions, done=self._done, **options)
        return [as_graded_today(*both) for both in zip(questions, found, strict=True)]

    def _kept(self, cell: Cell) -> bool:
        """Whether an earlier run has kept all its outcomes."""
        return all(self.store.get(cell, question) for question in self.task.questions)

    def _store_of(self, contender: Contender) -> Store[Outcome]:
        """The store of its outcomes; one that keeps nothing without an identity."""
        return Store(None, {}, Outcome) if contender.identity is None else self.store


def systems_named(named: str | None, *, baselines: bool, kept: bool) -> Sequence[str]:
    """Those of SYSTEMS that are named, by commas; without names all but passages and, unless
    wanted, the `baselines`.

    Raises `UsageError` for others, and where no figures come of it and no answer is `kept`.
    """
    if named is None:
        return _ALL if baselines else NO_BASELINES
    systems = [name.strip() for name in named.split(",")]
    why = hint = ""
    if unknown := set(systems) - set(SYSTEMS):
        why, hint = f"There is no system {min(unknown)!r}", f"choose from {', '.join(SYSTEMS)}"
    elif not baselines:
        why, hint = "Named systems are all that runs", "leave no-baselines out"
    elif not kept and not {EDGE.system, CLOUD.system} <= set(systems):
        why, hint = "Figures need edge and cloud", "name them too, or keep the answers in a folder"
    if why:
        raise UsageError(why, hint=hint, setting="systems")
    return systems


def manifest(
    task: Task, calibration: Task, edge: EdgeModel, cloud: CloudModel
) -> dict[str, object]:
    """Hashes of everything that outcomes depend on; equal manifests may share a folder.

    `cloud` must have been checked: only then an engine says which model it serves.
    """
    models = {"edge": edge.fingerprint(), "cloud": cloud_identity(cloud)}
    return {**described(task, calibration), **models}


def described(task: Task, calibration: Task) -> dict[str, object]:
    """The part of a manifest that is of the questions."""
    digest = hashlib.sha256(msgspec.json.encode([task, calibration])).hexdigest()
    return {"format": 3, "task": task.name, "questions": digest}


FAR = 0.25
"""A realised share this far from the one asked for (relative) is another one."""


AGREEMENT = (
    "The questions come without answers: right means here that an answer agrees with the cloud's "
    "own."
)


def warnings(task: Task, contenders: Sequence[Contender], table: Sequence[Row]) -> list[str]:
    """A sentence for each router that was made for other questions, or misses its share.

    A share is missed where all of its 95 % interval lies further off than `FAR`, so that few
    questions alone raise no alarm. Whole questions are sent within a share, not at one.
    """
    sentences = [] if task.known else [AGREEMENT]
    sentences += [_made_for_others(task, contender) for contender in contenders]
    figures = [row.overall for row in table]
    for system in dict.fromkeys(one.system for one in figures if one.system != QUERY_LEVEL):
        sentences.append(_missed([one for one in figures if one.system == system]))
    return [sentence for sentence in sentences if sentence]


def _made_for_others(task: Task, contender: Contender) -> str | None:
    card = contender.card
    if card is None:
        return None
    # "NAME, 4500 questions", as training writes it.
    for verb, made in (("trained", card.trained_on), ("calibrated", card.calibrated_on)):
        if made and made.rpartition(", ")[0] != task.name:
            return (
                f"The router {contender.name!r} was {verb} on {made}, not on {task.name}: its "
                "cloud share may miss the target here. edgewise tune sets thresholds for these, "
                "edgewise train makes a router."
            )
    return None


def _missed(points: Sequence[Figures]) -> str | None:
    off = [
        f"{one.cloud_share:.1%} where {one.cloud_share_asked:.0%} was asked for"
        for one in points
        if one.cloud_share_asked is not None and _is_far(one, one.cloud_share_asked)
    ]
    if not off:
        return None
    why = "its scores are spread otherwise here than where its thresholds were set"
    if points[0].system == VERIFY + SERVED:
        why = "its share holds over more answers than these"
    return f"{points[0].system} realised a cloud share of {', '.join(off)}: {why}."


def _is_far(figures: Figures, asked: float) -> bool:
    low, high = figures.cloud_share_interval
    return low > (1 + FAR) * asked or high < (1 - FAR) * asked
