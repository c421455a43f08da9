"""Calibration: find the thresholds at which a pair's answers have given cloud shares."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import CloudError
from edgewise.routers.base import Router
from edgewise_lab.evaluation.statistics import Interval, ratio_interval
from edgewise_lab.evaluation.store import append, read, side_by_side
from edgewise_lab.evaluation.systems import Decoded, Outcome, cloud_share, outcome_of, paired
from edgewise_lab.evaluation.tasks.base import Question, Task

ROUNDS = 12
_EACH = 0.6
"""Estimate, for progress bars: new answers that a cloud share takes, per question."""

Done = Callable[[int], None]
"""A callback after each new answer; it gets the estimated number of answers in all."""

SETTLED = 0.03
"""Relative error at which a realised cloud share is close enough to the one asked for."""


class Calibrated(msgspec.Struct, frozen=True):
    """A threshold with the cloud share that it realised and that share's 95% interval."""

    threshold: float
    share: float
    interval: Interval


class Standing(msgspec.Struct, frozen=True):
    """An answer made at a router's `threshold`, and the thresholds that would give the same one.

    These are above `low` and up to `high`. `scores` are the router's scores of the answer's tokens,
    ascending: none of them is between `low` and `high`.
    """

    outcome: Outcome
    scores: list[float]
    threshold: float

    @property
    def low(self) -> float:
        kept = bisect_left(self.scores, self.threshold)  # those at or above it are consulted
        return self.scores[kept - 1] if kept else -np.inf

    @property
    def high(self) -> float:
        kept = bisect_left(self.scores, self.threshold)
        return self.scores[kept] if kept < len(self.scores) else np.inf


class Realised(msgspec.Struct, frozen=True):
    """A pair's answers at one threshold, without the questions at which the cloud failed."""

    threshold: float
    answers: tuple[Standing, ...]

    @property
    def outcomes(self) -> list[Outcome]:
        return [one.outcome for one in self.answers]

    @property
    def share(self) -> float:
        return cloud_share(self.outcomes)

    def scores(self, low: float, high: float) -> NDArray[np.float64]:
        """Return all tokens' router scores from `low` to below `high`, float64[n], unsorted."""
        every = np.concatenate([one.scores for one in self.answers])
        return every[(every >= low) & (every < high)]


class Answers:
    """A pair's greedy answers to a task's questions at fixed thresholds.

    An answer is reused at thresholds that would give the same. `lost` maps the ids of questions at
    which the cloud failed to the reasons.
    """

    def __init__(
        self,
        router: Router,
        task: Task,
        *,
        edge: EdgeModel,
        cloud: CloudModel,
        deadline: float | None = None,
        done: Done = lambda total: None,
        file: Path | None = None,
        may_lose: int = 0,
        workers: int = 1,
    ) -> None:
        """Prepare to answer `task` in `workers` threads; `deadline` is in seconds a consult.

        Answers that an earlier run wrote to `file` are reused, and new ones appended without their
        text. Up to `may_lose` questions at which the cloud fails are left out.
        """
        self._router, self._task = router, task
        self._edge, self._cloud, self._deadline = edge, cloud, deadline
        self._done, self._file, self._may_lose = done, file, may_lose
        self._workers, self._lock = workers, threading.Lock()
        self._made: dict[str, list[Standing]] = {one.id: [] for one in task.questions}
        self._count = self._expected = 0
        self.lost: dict[str, str] = {}
        for standing in read(file, Standing) if file else ():
            self._made[standing.outcome.question].append(standing)

    def expect(self, shares: int) -> None:
        """Estimate, for progress bars, how many new answers `shares` more cloud shares take."""
        self._expected = self._count + round(shares * _EACH * len(self._task.questions))

    def at(self, threshold: float) -> Realised:
        """Return the pair's answers at this threshold, without the questions in `lost`.

        Raises the `CloudError` if the cloud fails at more than `may_lose` questions.
        """
        decoder = paired(self._edge, self._router, threshold, self._cloud, deadline=self._deadline)
        system = Decoded(decoder, self._task.max_tokens)
        known = {
            name: next((one for one in made if one.low < threshold <= one.high), None)
            for name, made in self._made.items()
        }
        missing = [one for one in self._task.questions if known[one.id] is None]
        self._expected = max(self._expected, self._count + len(missing))

        def make(question: Question) -> None:
            known[question.id] = self._make(system, question, threshold)

        wanted = [question for question in missing if question.id not in self.lost]
        side_by_side(make, wanted, self._workers)
        return Realised(threshold, tuple(one for one in known.values() if one))

    def _make(self, system: Decoded, question: Question, threshold: float) -> Standing | None:
        try:
            answer = system.ask(question)
        except CloudError as error:
            with self._lock:
                if len(self.lost) >= self._may_lose:
                    raise
                self.lost[question.id] = str(error)
            return None
        scores = sorted(token.score for token in answer.tokens if token.score is not None)
        made = Standing(outcome_of(question, answer), scores, threshold)
        with self._lock:
            self._made[question.id].append(made)
            if self._file:
                append(self._file, replace(made, outcome=replace(made.outcome, text="")))
            self._count += 1
            self._done(max(self._expected, self._count))
        return made


def thresholds_for(
    shares: Sequence[float], answers: Answers, rounds: int = ROUNDS
) -> dict[float, Calibrated]:
    """Find a threshold for each cloud share in `shares`; return them by share.

    A token of the cloud changes the scores of all tokens after it, so the share at a threshold is
    known only from answers made with it. Of the thresholds tried, the search keeps the nearest one
    with too large a share and the nearest with too small a share. It tries one between them, chosen
    by the scores seen there, until a share is within `SETTLED` (3%) of the target, no score lies
    between the two, or `rounds` were tried. The one with the nearest share is returned.
    """
    answers.expect(len(shares))
    points = [answers.at(1.0)]
    found: dict[float, Calibrated] = {}
    for place, share in enumerate(sorted(shares)):
        answers.expect(len(shares) - place)
        _search(share, points, answers, rounds)
        found[share] = _calibrated(_nearest(points, share))
    return found


def _search(share: float, points: list[Realised], answers: Answers, rounds: int) -> None:
    """Add answers at new thresholds to `points` until one has this share or none can be nearer."""
    too_much: list[bool] = []
    for _ in range(rounds):
        if abs(_nearest(points, share).share - share) <= SETTLED * share:
            return
        low, high = _bracket(points, share)
        # Where one end stands still, interpolation alone would creep towards it.
        halve = too_much[-2:] in ([True, True], [False, False])
        threshold = None if high is None else _between(low, high, share, halve=halve)
        if threshold is None:
            return
        points.append(answers.at(threshold))
        too_much.append(points[-1].share > share)


def _nearest(points: Sequence[Realised], share: float) -> Realised:
    return min(points, key=lambda point: abs(point.share - share))


def _bracket(points: Sequence[Realised], share: float) -> tuple[Realised | None, Realised | None]:
    """Return the point of highest threshold whose share exceeds `share`, and the next above it."""
    high = None
    for point in sorted(points, key=lambda point: -point.threshold):
        if point.share > share:
            return point, high
        high = point
    return None, high


def _between(low: Realised | None, high: Realised, share: float, *, halve: bool) -> float | None:
    """Return a threshold between two points, where answers change; None if there is none.

    Each score between them means a consult more than at `high`: their rank tells where `share` is.
    """
    start = 0.0 if low is None else low.threshold
    pools = [point.scores(start, high.threshold) for point in (low, high) if point is not None]
    pool = np.sort(np.concatenate(pools))
    options = pool if low is None else pool[pool > pool[:1]]
    if not len(options):
        return None
    full = 1.0 if low is None else low.share
    consulted = 0.5 if halve and low else (share - high.share) / (full - high.share)
    wanted = pool[min(len(pool) - 1, round((1 - consulted) * len(pool)))]
    return float(max(wanted, options[0]))


def _calibrated(point: Realised) -> Calibrated:
    """Return a short threshold at which all answers of this point stay the same."""
    low = max(0.0, *(one.low for one in point.answers))
    high = min(1.0, *(one.high for one in point.answers))
    asked = [o.cloud_tokens + o.wasted_tokens for o in point.outcomes]
    interval = ratio_interval(asked, [o.output_tokens for o in point.outcomes])
    return Calibrated(_shortest(low, high), point.share, interval)


def _shortest(low: float, high: float) -> float:
    """Return the number with the fewest digits in the middle half of `low` to `high`."""
    quarter = (high - low) / 4
    for digits in range(1, 18):
        found = float(f"{(low + high) / 2:.{digits}g}")
        if low + quarter <= found <= high - quarter and low < found:
            return found
    return high
