"""A timeline of one answer: what the edge computed, what was asked, what was told, and when.

A `Recorder` stands between a decoder and its models and writes one JSON object a line. It adds
nothing to a decoder that is not traced.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.cloud.wrapped import WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step
from edgewise.errors import CloudError, UsageError
from edgewise.events import Event
from edgewise.loop.decoder import Decoder
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling


class EdgeStep(msgspec.Struct, frozen=True, tag="edge-step", kw_only=True):
    """A forward pass over `computed` ids that took `seconds`; `position` ids stood then."""

    position: int
    computed: int
    seconds: float


class EdgeRewind(msgspec.Struct, frozen=True, tag="edge-rewind"):
    """The edge session went back to `position`; `tokens` computed ids are gone."""

    position: int
    tokens: int


class Asked(msgspec.Struct, frozen=True, tag="ask"):
    """Consult `number` was sent for `tokens` tokens at `position`; `deadline` is None for none."""

    number: int
    position: int
    tokens: int
    deadline: float | None


class Pushed(msgspec.Struct, frozen=True, tag="push"):
    """`new_ids` from `position` on were sent without a question."""

    position: int
    new_ids: int


class Answered(msgspec.Struct, frozen=True, tag="answered", kw_only=True):
    """Consult `number` is over after `seconds`: `answered`, `cancelled` or a fault's name.

    `sent_ids` token ids and `sent_bytes` bytes had travelled for it, as `request_id`.
    """

    number: int
    outcome: str
    seconds: float
    tokens: int = 0
    engine_seconds: float | None = None
    sent_ids: int = 0
    sent_bytes: int = 0
    request_id: str | None = None


Entry = EdgeStep | EdgeRewind | Asked | Pushed | Answered


class Record(msgspec.Struct, frozen=True):
    """A line of a trace: an entry or a decoder's event, `at` seconds after the trace began.

    The clock is monotonic. Entries that have `seconds` began that long before `at`.
    """

    at: float
    event: Entry | Event


class Recorder:
    """Writes the timeline of a decoder's answers to a file."""

    def __init__(self, file: BinaryIO) -> None:
        """`file` is opened by the caller and stays the caller's."""
        self._file = file
        self._began = time.monotonic()
        self._consults = 0
        # Consults end in other threads; only the decoder's own writes.
        self._late: SimpleQueue[Record] = SimpleQueue()

    def decoder(self, decoder: Decoder) -> Decoder:
        """The same decoder, watched."""
        edge: Any = _Edge(decoder.edge, self)
        cloud = _Cloud(decoder.cloud, self) if decoder.cloud else None
        return Decoder(
            edge,
            router=decoder.router,
            policy=decoder.policy,
            cloud=cloud,
            breaker=decoder.breaker,
            latency=decoder.latency,
            record=decoder.record,
            billing=decoder.billing,
        )

    def events(self, events: Iterator[Event]) -> Iterator[Event]:
        """The same events, recorded on their way."""
        for event in events:
            self.add(event)
            yield event
        self._write_late()

    def add(self, entry: Entry | Event) -> None:
        """Record what happened just now; raises `UsageError` where the file cannot be written."""
        self._write_late()
        self._write(Record(self._now(), entry))

    def asked(self, future: "Future[Completion]", ask: Asked, sent: Sent) -> None:
        """Record a consult, and its end when that comes."""
        begun = time.monotonic()
        self.add(ask)

        def over(done: "Future[Completion]") -> None:
            ended = _ended(done, ask.number, time.monotonic() - begun)
            ended = replace(
                ended, sent_ids=sent.ids, sent_bytes=sent.bytes, request_id=sent.request_id
            )
            self._late.put(Record(self._now(), ended))

        future.add_done_callback(over)

    def next_consult(self) -> int:
        """Numbers consults from 0 on."""
        self._consults += 1
        return self._consults - 1

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _write_late(self) -> None:
        while not self._late.empty():
            self._write(self._late.get())

    def _write(self, record: Record) -> None:
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            raise UsageError(f"The trace cannot be written: {error.strerror}.") from error


def _ended(done: "Future[Completion]", number: int, seconds: float) -> Answered:
    if done.cancelled():
        return Answered(number=number, outcome="cancelled", seconds=seconds)
    error = done.exception()
    if error is not None:
        reason = error.reason if isinstance(error, CloudError) else type(error).__name__
        return Answered(number=number, outcome=reason, seconds=seconds)
    completion = done.result()
    return Answered(
        number=number,
        outcome="answered",
        seconds=seconds,
        tokens=len(completion.ids),
        engine_seconds=completion.engine_seconds,
    )


class _Edge:
    """An edge model whose sessions are watched."""

    def __init__(self, model: EdgeModel, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "_EdgeSession":
        return _EdgeSession(self._model.session(needs, top=top), self._recorder)


class _EdgeSession:
    def __init__(self, session: EdgeSession, recorder: Recorder) -> None:
        self._session, self._recorder = session, recorder
        self._computed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def position(self) -> int:
        return self._session.position

    def open(self, ids: Sequence[int]) -> int:
        self._computed = self._session.open(ids)
        return self._computed

    def step(self) -> Step:
        begun = time.monotonic()
        step = self._session.step()
        self._passed(begun)
        return step

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        begun = time.monotonic()
        steps = self._session.steps(ids)
        self._passed(begun)
        return steps

    def _passed(self, begun: float) -> None:
        seconds = time.monotonic() - begun
        position, computed = self._session.position, self._session.position - self._computed
        self._computed = position
        self._recorder.add(EdgeStep(position=position, computed=computed, seconds=seconds))

    def rewind(self, position: int) -> None:
        self._session.rewind(position)
        if position < self._computed:
            self._recorder.add(EdgeRewind(position, self._computed - position))
            self._computed = position


class _Cloud(WrappedCloud):
    """A cloud model whose sessions are watched."""

    def __init__(self, cloud: CloudModel, recorder: Recorder) -> None:
        super().__init__(cloud)
        self._recorder = recorder

    def open(self, prompt: Prompt) -> "_CloudSession":
        return _CloudSession(self.cloud.open(prompt), self._recorder)


class _CloudSession(WrappedSession):
    def __init__(self, session: CloudSession, recorder: Recorder) -> None:
        super().__init__(session)
        self._recorder = recorder

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        sent = sent or Sent()
        ask = Asked(
            self._recorder.next_consult(), len(ids), n, deadline if deadline < math.inf else None
        )
        future = super().ask(ids, n, sampling, deadline, sent)
        self._recorder.asked(future, ask, sent)
        return future

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        fresh = super().push(ids, sent)
        if fresh:
            self._recorder.add(Pushed(len(ids) - fresh, fresh))
        return fresh
