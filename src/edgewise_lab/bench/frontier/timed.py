"""Measures systems: when text appears, what the edge computes, what the cloud is asked for."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.loop.policy import CLOUD_SPAN, LONGEST_DEADLINE
from edgewise.routers.base import Router
from edgewise.testing.link import Link
from edgewise_lab.bench.frontier.billing import CloudRequest, RecordedCloud
from edgewise_lab.bench.frontier.streamed import Streamed
from edgewise_lab.bench.pace import UNPACED, DelayedCloud, EngineTime, Pace, PacedEdge
from edgewise_lab.evaluation.store import Cell, Store, run
from edgewise_lab.evaluation.systems import (
    AtPosition,
    CloudAlone,
    Decoded,
    Outcome,
    System,
    commit_position,
    edge_alone,
    paired,
    total,
)
from edgewise_lab.evaluation.tasks.base import Question


class MeasuredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A system's answer to a question, with its times and its costs.

    `outcome` is the graded answer, its duration included. In seconds, `ttft` is the time until the
    first text (until the end without any), `gap` the longest time between two pieces of text. The
    edge made `decodes` forward passes over `positions` ids, prompt included. `requests` went to the
    cloud, `sent` and `received` bytes over the link (None: a cloud without a `Link`).
    """

    outcome: Outcome
    ttft: float
    gap: float
    decodes: int = 0
    positions: int = 0
    requests: tuple[CloudRequest, ...] = ()
    sent: int | None = None
    received: int | None = None

    @property
    def question(self) -> str:
        """The question's id."""
        return self.outcome.question


class Timed:
    """Measures the answers of `system`: their times, and what edge, cloud and link did for them.

    `edge`, `cloud` and `link` are those that the system uses; None where it uses none.
    """

    def __init__(
        self,
        system: System,
        *,
        edge: PacedEdge | None = None,
        cloud: RecordedCloud | Streamed | None = None,
        link: Link | None = None,
        one_request: bool = False,
        before: Callable[[Question], None] = lambda question: None,
    ) -> None:
        """With `one_request`, an answer's requests are merged into one, as if streamed.

        `before` is called before each answer; its time does not count.
        """
        self._system, self._edge, self._cloud, self._link = system, edge, cloud, link
        self._one_request, self._before = one_request, before
        self._shown: list[float] = []

    def answer(self, question: Question) -> MeasuredAnswer:
        """Answer a question, and measure it. Raises a `CloudError` where the cloud fails."""
        self._before(question)
        if self._cloud is not None:
            self._cloud.take()
        before, self._shown = self._counts(), []
        begun = time.monotonic()
        outcome = self._system.answer(question, self._saw)
        over = time.monotonic()
        decodes, positions, *bytes_ = (
            None if now is None or then is None else now - then
            for now, then in zip(self._counts(), before, strict=True)
        )
        requests = () if self._cloud is None else self._cloud.take()
        if self._one_request:
            requests = (_as_one(requests, outcome.output_tokens),)
        shown = self._shown or [over]
        gaps = (later - earlier for earlier, later in pairwise(shown))
        return MeasuredAnswer(
            outcome=msgspec.structs.replace(outcome, seconds=over - begun),
            ttft=shown[0] - begun,
            gap=max(gaps, default=0.0),
            decodes=decodes or 0,
            positions=positions or 0,
            requests=requests,
            sent=bytes_[0],
            received=bytes_[1],
        )

    def _saw(self, text: str) -> None:
        if text:
            self._shown.append(time.monotonic())

    def _counts(self) -> tuple[int | None, ...]:
        edge, link = self._edge, self._link
        own = (None, None) if edge is None else (edge.decodes, edge.positions)
        if link is not None:
            return *own, link.up, link.down
        # Without a cloud nothing travels.
        return *own, *((0, 0) if self._cloud is None else (None, None))


def _as_one(spans: Sequence[CloudRequest], written: int) -> CloudRequest:
    """Merge an answer's requests: the first prompt, `written` tokens, the engine's work for all."""
    return CloudRequest(
        prompt=spans[0].prompt,
        seen=0,
        written=written,
        cached=spans[0].cached,
        computed=total(span.computed for span in spans),
        engine_seconds=total(span.engine_seconds for span in spans),
    )


SPANS_NOTE = (
    "asked for 16 tokens at a time, since only an engine streams, and billed as one request; name "
    "an engine's URL to have it streamed"
)
PLACE_NOTE = "its place was found before, by an answer that is not counted"


class PairSystems:
    """Creates the systems to measure, from an edge model and a cloud of the same vocabulary.

    `close` closes the connections that the systems opened; it leaves both models open.
    """

    def __init__(
        self,
        edge: EdgeModel,
        cloud: CloudModel,
        max_tokens: int,
        *,
        pace: Pace = UNPACED,
        link: Link | None = None,
        key: str | None = None,
        seconds: EngineTime | None = None,
        slowed: bool = False,
    ) -> None:
        """`pace` slows the edge down. `link` is the one that `cloud` was opened through, if any.

        `cloud` must have been checked (`check_vocabulary`); `key` is its API key, for streaming.
        `seconds` computes an engine's time in place of its report. With `slowed` completions, but
        not streamed answers, also take that time. Raises `UsageError` for another vocabulary.
        """
        if cloud.boundaries is not None:
            raise UsageError(
                "The frontier compares models of one vocabulary",
                hint="choose two models of one family",
                setting="cloud",
            )
        self._model, self._pace, self._max_tokens = edge, pace, max_tokens
        self._cloud, self._link, self._key, self._seconds = cloud, link, key, seconds
        # Only completions can be delayed; a stream comes from the engine directly.
        self._asked = DelayedCloud(cloud, seconds) if slowed and seconds else cloud
        self._streams: list[Streamed] = []

    @property
    def streams(self) -> bool:
        """Whether the cloud can stream: only an engine that is asked directly, by ids, can."""
        return self._cloud.id_engine is not None

    def close(self) -> None:
        """Close the connections of streaming systems."""
        for stream in self._streams:
            stream.close()

    def edge(self) -> Timed:
        """Return the edge model alone as a system, slowed down to the `pace` of this object."""
        return self.larger_edge(self._model, self._pace)

    def larger_edge(self, model: EdgeModel, pace: Pace) -> Timed:
        """Return another edge model alone as a system, slowed down to `pace`."""
        edge: Any = PacedEdge(model, pace)  # used as an `EdgeModel`
        return Timed(edge_alone(edge, self._max_tokens), edge=edge)

    def cloud(self) -> Timed:
        """Return the cloud alone as a system.

        It is streamed if it can be. Else it is asked for `CLOUD_SPAN` tokens at a time, and these
        requests are merged into one in each `MeasuredAnswer`.
        """
        tokenizer = self._model.tokenizer
        if not self.streams:
            cloud = self._recorded()
            spans = CloudAlone(cloud, tokenizer, self._max_tokens, CLOUD_SPAN)
            return Timed(spans, cloud=cloud, link=self._link, one_request=True)
        engine = self._cloud.id_engine
        stream = Streamed(
            self._cloud.name,
            tokenizer,
            self._max_tokens,
            model=None if engine is None else engine.described.model,
            key=self._key,
            seconds=self._seconds,
        )
        self._streams.append(stream)
        return Timed(stream, cloud=stream, link=self._link)

    def pair(self, router: Router, threshold: float, speculate: int) -> Timed:
        """Return edge and cloud as a system, with a router at a fixed threshold.

        While the cloud is asked, the edge writes up to `speculate` draft tokens; with 0 it waits.
        """
        return self._pair(router, threshold, speculate)

    def commit_point(self, speculate: int) -> Timed:
        """Return a system for multiple choice, in which the cloud writes the deciding token.

        It stands where the edge, answering alone, first names one of the question's choices (if it
        names none, the cloud is not asked). This position is found before the timing starts, as if
        the device knew it. `speculate` is as for `pair`.
        """
        place = AtPosition(None)

        def find(question: Question) -> None:
            place.position = commit_position(self._model, question, self._max_tokens)

        return self._pair(place, 1.0, speculate, max_cloud_tokens=1, before=find)

    def _pair(
        self,
        router: Router,
        threshold: float,
        speculate: int,
        *,
        max_cloud_tokens: int | None = None,
        before: Callable[[Question], None] = lambda question: None,
    ) -> Timed:
        edge: Any = PacedEdge(self._model, self._pace)  # used as an `EdgeModel`
        cloud = self._recorded()
        decoder = paired(
            edge,
            router,
            threshold,
            cloud,
            deadline=LONGEST_DEADLINE,
            speculate=speculate,
            max_cloud_tokens=max_cloud_tokens,
        )
        system = Decoded(decoder, self._max_tokens)
        return Timed(system, edge=edge, cloud=cloud, link=self._link, before=before)

    def _recorded(self) -> RecordedCloud:
        return RecordedCloud(self._asked, self._seconds)


def measure(
    name: str,
    system: Callable[[], Timed],
    questions: Sequence[Question],
    store: Store[MeasuredAnswer],
    done: Callable[[], None] = lambda: None,
) -> list[MeasuredAnswer]:
    """Return the system's answer to every question, in order; those in `store` are reused.

    New answers are stored there under `name`. `system` creates the system; it is called only if an
    answer is missing. `done` is called for each answer, stored ones included.
    """
    made = cache(system)
    return run(Cell(name), lambda one: made().answer(one), questions, store, done)
