"""A trace of one answer: what the edge computed, which consults were sent, and when.

A `Recorder` watches a decoder's edge model and its events. It writes Chrome's Trace Event Format,
which Perfetto (ui.perfetto.dev) shows: one track for the edge model, one for the answer, consults
as asynchronous slices. A decoder that is not traced pays nothing for it.
"""

import time
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, BinaryIO, cast

import msgspec

from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step
from edgewise.errors import UsageError
from edgewise.events import Consult, Event, Finished, Token
from edgewise.loop.decoder import Decoder

_EDGE, _ANSWER = 1, 2
_Record = dict[str, Any]


class Recorder:
    """Writes the trace of a decoder's answer to a file, event by event."""

    def __init__(self, file: BinaryIO) -> None:
        """`file` is opened by the caller and stays the caller's."""
        self._file, self._lines, self._consults = file, 0, 0
        self._began = time.monotonic()
        for track, name in ((_EDGE, "edge model"), (_ANSWER, "answer")):
            self._write({"name": "thread_name", "ph": "M", "tid": track, "args": {"name": name}})

    def decoder(self, decoder: Decoder) -> Decoder:
        """The same decoder, its edge model watched."""
        watched = copy(decoder)
        watched.edge = cast(EdgeModel, _Edge(decoder.edge, self))
        return watched

    def events(self, events: Iterator[Event]) -> Iterator[Event]:
        """The same events, recorded on their way; `Finished` ends the trace."""
        for event in events:
            args = msgspec.to_builtins(event)
            if isinstance(event, Token):
                name = f"{event.text or '·'} ({event.source})"
                self.slice(_ANSWER, name, event.seconds, args)
            elif isinstance(event, Consult):
                self._consult(event, args)
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

    def _consult(self, consult: Consult, args: object) -> None:
        """Consults overlap, so they are asynchronous slices."""
        name = {"name": f"consult {self._consults}", "id": self._consults}
        self._consults += 1
        begun = self._now() - _micro(consult.seconds)
        self._add({**name, "ph": "b", "ts": begun}, _ANSWER, args)
        self._add({**name, "ph": "e", "ts": self._now()}, _ANSWER, args)

    def _now(self) -> float:
        return _micro(time.monotonic() - self._began)

    def _add(self, record: _Record, track: int, args: object) -> None:
        self._write({**record, "tid": track, "args": args})

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
