"""An evaluation: it answers a task's questions with several systems and collects the outcomes.

A *system* is one way to answer: the edge model alone, the cloud model alone, or both with a router.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.edge.engine import DEFAULT_CONTEXT
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.loop.verify import READS_ALONG
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard
from edgewise.routers.named import identity_named, router_named
from edgewise_lab.evaluation.able_reader import AbleReader
from edgewise_lab.evaluation.calibration import Answers, Calibrated, thresholds_for
from edgewise_lab.evaluation.report import CLOUD, EDGE, SERVED, Row
from edgewise_lab.evaluation.store import Cell, Store, run
from edgewise_lab.evaluation.systems import (
    AsServed,
    CloudAlone,
    Decoded,
    Outcome,
    as_graded_today,
    cloud_identity,
    contexts_of,
    edge_alone,
    graded,
    paired,
    query_level,
    require_room,
)
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task

VERIFY, PASSAGES = "verify", "passages"
EXACT = Cell("exact")
QUERY_LEVEL = "query-level"

BASELINES = ("random", "max-prob", "entropy", "margin")
OF_ROUTERS = ("served", "static")
CALIBRATED = ("static", *BASELINES)
"""Systems that need a threshold for each cloud share, unless the router's card has it."""
OF_READERS = (EDGE.system, CLOUD.system, QUERY_LEVEL, VERIFY)
"""Systems of a cloud that reads passages: it writes no tokens, so no router asks it for any."""
_ALL = (EDGE.system, CLOUD.system, *OF_ROUTERS, *BASELINES, QUERY_LEVEL, VERIFY, EXACT.system)
SYSTEMS = (*_ALL, PASSAGES)
"""Names of all systems. A budget moves the threshold of "served"; that of "static" is fixed."""

_Part = tuple[int, Callable[[], dict[Cell, list[Outcome]]]]
"""A number of systems, and the function that makes their outcomes."""


class Contender(msgspec.Struct, frozen=True):
    """A router that takes part in an evaluation, and its checkpoint's `card`, if it has one.

    `identity` is a digest of the router, under which outcomes are stored; with None they are not.
    `served` maps cloud shares to the policies that `edgewise serve` would use for them.
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
        store: Store | None = None,
    ) -> dict[float, float]:
        """Return a threshold for each cloud share: the card's, else the stored one, else a new one.

        `find` is called once with the shares that lack one, if any; what it returns is stored.
        """
        store, identity = store or Store(None, {}), self.identity or ""
        known: dict[float, float] = {}
        for share in shares:
            held = self.card.threshold(share) if self.card else None
            held = store.threshold(Cell(self.name, share), identity) if held is None else held
            if held is not None:
                known[share] = held
        lacking = [share for share in shares if share not in known]
        for share, point in find(lacking).items() if lacking else ():
            store.set_threshold(Cell(self.name, share), point.threshold, identity)
            known[share] = point.threshold
        return {share: known[share] for share in shares}


def contender_named(name: str) -> Contender:
    """Return the router `name`, if it needs no training. Raises `UsageError` for any other."""
    return Contender(name, router_named(name), identity=identity_named(name))


class Evaluation:
    """A comparison, on one task, of systems that are made of one edge and one cloud model."""

    def __init__(
        self,
        task: Task,
        calibration: Task,
        *,
        edge: EdgeModel,
        cloud: CloudModel,
        store: Store,
        deadline: float | None = None,
        done: Callable[[], None] = lambda: None,
        workers: int = 1,
    ) -> None:
        """Prepare to answer `task`; thresholds are set on the questions of `calibration`.

        `deadline` is in seconds per consult (None: `Policy`'s). `done` is called for each answer.
        Each model needs sessions for `workers` threads. Raises `ContextOverflow` if a question
        leaves no room for an answer.
        """
        for asked in (task, calibration):
            require_room(asked, edge, cloud)
        self.task, self.calibration = task, calibration
        self.edge, self.cloud = edge, cloud
        self.deadline = deadline
        self._verifying = Policy(verify="on", on_cloud_error="raise", deadline=deadline)
        self.store, self._done, self._workers = store, done, workers

    def run(
        self,
        contenders: Sequence[Contender],
        shares: Sequence[float],
        systems: Collection[str] = SYSTEMS,
    ) -> dict[Cell, list[Outcome]]:
        """Answer all questions with the `systems`; return the outcomes of each, in report order.

        `contenders` are the routers to compare, `shares` the cloud shares. Stored outcomes are
        reused. Systems that this cloud cannot serve are left out. Edge alone and cloud alone are
        added if all their outcomes are stored, cloud alone also if its answers stand in for unknown
        ones.
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
        """Return how many answers `run` makes or finds stored, without those of calibration."""
        parts = self._parts(contenders, shares, systems, {})
        return sum(count for count, _ in parts) * len(self.task.questions)

    def _parts(
        self,
        contenders: Sequence[Contender],
        shares: Sequence[float],
        systems: Collection[str],
        found: Mapping[Cell, list[Outcome]],
    ) -> Iterator[_Part]:
        """Yield a run's parts in order; the caller adds each one's outcomes to `found` at once."""
        alone = [cell for cell in (EDGE, CLOUD) if cell.system in systems or self._kept(cell)]
        if not self.task.known and CLOUD not in alone:
            alone.append(CLOUD)
        yield len(alone), partial(self.alone, alone)
        if self.cloud.reads_passages:
            systems = {*systems} & {*OF_READERS}
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

    def alone(self, cells: Collection[Cell] = (EDGE, CLOUD)) -> dict[Cell, list[Outcome]]:
        """Return the outcomes of edge alone (`EDGE`) and cloud alone (`CLOUD`), if in `cells`.

        The reply of cloud alone becomes the right answer of each question that has none: all
        outcomes after it are graded by it.
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
        """Return outcomes of the router as `edgewise serve` runs it, at each share in its `served`.

        All answers at one share draw on one budget of cloud tokens, which goes on as an earlier run
        left it. `cloud` is asked in place of the evaluation's own.
        """
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
        """Return, for each cloud share, the outcomes where the cloud verifies within a budget.

        `name` is the system's. `cloud` is asked in place of the evaluation's own.
        """
        by_share = {share: replace(self._verifying, cloud_share=share) for share in shares}
        return self.served(Contender(name, READS_ALONG, identity=name, served=by_share), cloud)

    def exact(self) -> dict[Cell, list[Outcome]]:
        """Return the outcomes of a pair whose cloud replaces all tokens that it would not write."""
        policy = replace(self._verifying, verify="exact")
        decoder = Decoder(self.edge, router=READS_ALONG, policy=policy, cloud=self.cloud)
        return {EXACT: self._cell(EXACT, Decoded(decoder, self.task.max_tokens).answer)}

    def pairs(self, contender: Contender, shares: Sequence[float]) -> dict[Cell, list[Outcome]]:
        """Return the outcomes of a pair with this router, at a fixed threshold for each share."""
        store, router = self._store_of(contender), contender.identity or ""
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
        pair = partial(paired, self.edge, contender.router, cloud=self.cloud)
        for share, threshold in contender.thresholds(shares, find, store).items():
            cell = Cell(contender.name, share)
            decoder = pair(threshold, deadline=self.deadline)
            answer = Decoded(decoder, self.task.max_tokens).answer
            found[cell] = self._cell(cell, answer, store=store, router=router)
        return found

    def _cell(
        self, cell: Cell, answer: Callable[[Question], Outcome], **options: Any
    ) -> list[Outcome]:
        options = {"store": self.store, "workers": self._workers, **options}
        questions = self.task.questions
        found = run(cell, answer, questions, done=self._done, **options)
        return [as_graded_today(*both) for both in zip(questions, found, strict=True)]

    def _kept(self, cell: Cell) -> bool:
        return all(self.store.get(cell, question) for question in self.task.questions)

    def _store_of(self, contender: Contender) -> Store:
        return Store(None, {}) if contender.identity is None else self.store


def systems_named(named: str | None, *, kept: bool) -> Sequence[str]:
    """Return the systems `named`, separated by commas; None stands for all but "passages".

    Raises `UsageError` for an unknown one, and, unless answers are `kept` in a folder, without
    "edge" and "cloud", which all figures need.
    """
    if named is None:
        return _ALL
    systems = [name.strip() for name in named.split(",")]
    if unknown := set(systems) - set(SYSTEMS):
        why, hint = f"There is no system {min(unknown)!r}", f"choose from {', '.join(SYSTEMS)}"
        raise UsageError(why, hint=hint, setting="systems")
    if not kept and not {EDGE.system, CLOUD.system} <= set(systems):
        hint = "name them too, or keep the answers in a folder"
        raise UsageError("Figures need edge and cloud", hint=hint, setting="systems")
    return systems


def manifest(
    task: Task, calibration: Task, edge: EdgeModel, cloud: CloudModel
) -> dict[str, object]:
    """Return what identifies all that outcomes depend on: questions, contexts and models.

    Call `cloud.check_vocabulary` first; before that, a server's model may be unknown.
    """
    models = {"edge": edge.fingerprint(), "cloud": cloud_identity(cloud)}
    return {**described(task, calibration, contexts_of(edge, cloud)), **models}


def described(task: Task, calibration: Task, contexts: Sequence[int]) -> dict[str, object]:
    """Return the part of a manifest that identifies both tasks' questions and `contexts` (ids)."""
    digest = hashlib.sha256(msgspec.json.encode([task, calibration])).hexdigest()
    # Left out as folders of before contexts were kept have it.
    held = {} if {*contexts} == {DEFAULT_CONTEXT} else {"contexts": contexts}
    return {"format": 3, "task": task.name, "questions": digest, **held}


FAR = 0.25
"""Relative error beyond which a realised cloud share counts as missed."""


def warnings(task: Task, contenders: Sequence[Contender], table: Sequence[Row]) -> list[str]:
    """Return warnings about the figures in `table`, one sentence each.

    There is one if right answers are unknown, one for each router trained or calibrated on another
    task, and one for each system whose cloud share is over 25% off target in all its 95% interval.
    """
    sentences: list[str] = []
    if not task.known:
        how = "right means here that an answer agrees with the cloud's own"
        sentences.append(f"The questions come without answers: {how}.")
    sentences += filter(None, (_made_for_others(task, contender) for contender in contenders))
    missed: dict[str, list[str]] = {}
    for one in (row.overall for row in table):
        low, high = one.cloud_share_interval
        # Whole answers take the share asked for as an upper limit.
        asked = None if one.system == QUERY_LEVEL else one.cloud_share_asked
        if asked is not None and (low > (1 + FAR) * asked or high < (1 - FAR) * asked):
            off = f"{one.cloud_share:.1%} where {asked:.0%} was asked for"
            missed.setdefault(one.system, []).append(off)
    for system, off in missed.items():
        why = "its scores are spread otherwise here than where its thresholds were set"
        if system == VERIFY + SERVED:
            why = "its share holds over more answers than these"
        sentences.append(f"{system} realised a cloud share of {', '.join(off)}: {why}.")
    return sentences


def _made_for_others(task: Task, contender: Contender) -> str | None:
    if (card := contender.card) is None:
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
