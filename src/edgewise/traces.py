"""A trace of one answer: what the edge computed, which consults were sent, and when.

A `Recorder` stands between a decoder and its models. It writes Chrome's Trace Event Format, which
Perfetto (ui.perfetto.dev) shows: one track for the edge model, one for the answer, consults as
nested slices. A decoder that is not traced pays nothing for it.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, BinaryIO

import msgspec

from edgewise.cloud.base import CloudModel, CloudSession, WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step
from edgewise.errors import CloudError, UsageError
from edgewise.events import Event, Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

_EDGE, _ANSWER = 1, 2
_Record = dict[str, Any]


class Recorder:
    """Writes the trace of a decoder's answer to a file, event by event."""

    def __init__(self, file: BinaryIO) -> None:
        """`file` is opened by the caller and stays the caller's."""
        self._file, self._lines, self._consults = file, 0, 0
        self._began = time.monotonic()
        # Consults end in other threads; only the decoder's own thread writes.
        self._late: SimpleQueue[_Record] = SimpleQueue()
        for track, name in ((_EDGE, "edge model"), (_ANSWER, "answer")):
            self._write({"name": "thread_name", "ph": "M", "tid": track, "args": {"name": name}})

    def decoder(self, decoder: Decoder) -> Decoder:
        """The same decoder, watched."""
        edge: Any = _Edge(decoder.edge, self)
        return Decoder(
            edge,
            router=decoder.router,
            policy=decoder.policy,
            cloud=_Cloud(decoder.cloud, self) if decoder.cloud else None,
            breaker=decoder.breaker,
            latency=decoder.latency,
            record=decoder.record,
            billing=decoder.billing,
        )

    def events(self, events: Iterator[Event]) -> Iterator[Event]:
        """The same events, recorded on their way; `Finished` ends the trace."""
        for event in events:
            args = msgspec.to_builtins(event)
            if isinstance(event, Token):
                name = f"{event.text or '·'} ({event.source})"
                self.slice(_ANSWER, name, event.seconds, args)
            else:
                self.moment(_ANSWER, type(event).__name__.lower(), args)
            if isinstance(event, Finished):
                self._put(b"\n]\n")
            yield event

    def slice(self, track: int, name: str, seconds: float, args: object) -> None:
        """Record what ends now and took `seconds`. Raises `UsageError` if it cannot be written."""
        begun = self._now() - _micro(seconds)
        self._add({"name": name, "ph": "X", "ts": begun, "dur": _micro(seconds)}, track, args)

    def moment(self, track: int, name: str, args: object) -> None:
        """Record what takes no time. Raises `UsageError` if it cannot be written."""
        self._add({"name": name, "ph": "i", "s": "t", "ts": self._now()}, track, args)

    def consult(self, future: "Future[Completion]", args: _Record, sent: Sent) -> None:
        """Record a consult that was sent, and its end when that comes."""
        number, self._consults = self._consults, self._consults + 1
        name = {"name": f"consult {number}", "id": number}
        self._add({**name, "ph": "b", "ts": self._now()}, _ANSWER, args)

        def over(done: "Future[Completion]") -> None:
            travelled = {
                "sent_ids": sent.ids,
                "sent_bytes": sent.bytes,
                "request_id": sent.request_id,
            }
            ended = {**name, "ph": "e", "ts": self._now(), "tid": _ANSWER}
            self._late.put({**ended, "args": {**_outcome(done), **travelled}})

        future.add_done_callback(over)

    def _now(self) -> float:
        return _micro(time.monotonic() - self._began)

    def _add(self, record: _Record, track: int, args: object) -> None:
        self._write_late()
        self._write({**record, "tid": track, "args": args})

    def _write_late(self) -> None:
        while not self._late.empty():
            self._write(self._late.get())

    def _write(self, record: _Record) -> None:
        line = msgspec.json.encode({"pid": 1, "cat": "edgewise", **record})
        # An array without its end is a trace too: a process may be killed.
        self._put((b",\n" if self._lines else b"[\n") + line)
        self._lines += 1

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise UsageError(f"The trace cannot be written: {error.strerror}.") from error


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def _outcome(done: "Future[Completion]") -> _Record:
    """How a consult ended: `answered`, `cancelled` or a fault's name."""
    if done.cancelled():
        return {"outcome": "cancelled"}
    if (error := done.exception()) is not None:
        reason = error.reason if isinstance(error, CloudError) else type(error).__name__
        return {"outcome": reason}
    completion = done.result()
    return {
        "outcome": "answered",
        "tokens": len(completion.ids),
        "engine_seconds": completion.engine_seconds,
    }


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
        position, before = self._session.position, self._computed
        self._computed = position
        name = "step" if position - before == 1 else f"{position - before} ids"
        args = {"position": position, "computed": position - before}
        self._recorder.slice(_EDGE, name, time.monotonic() - begun, args)

    def rewind(self, position: int) -> None:
        self._session.rewind(position)
        if position < self._computed:
            gone, self._computed = self._computed - position, position
            self._recorder.moment(_EDGE, f"rewind {gone}", {"position": position, "tokens": gone})


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
        future = super().ask(ids, n, sampling, deadline, sent)
        limit = deadline if deadline < math.inf else None
        args = {"position": len(ids), "tokens": n, "deadline": limit}
        self._recorder.consult(future, args, sent)
        return future

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        fresh = super().prefetch(ids, sent)
        if fresh:
            args = {"position": len(ids) - fresh, "new_ids": fresh}
            self._recorder.moment(_ANSWER, "pushed", args)
        return fresh
