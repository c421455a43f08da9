"""A switch between one answer and the cloud: off, consults fail as at a cloud that is gone."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from edgewise.cloud.base import CloudModel, CloudSession, failed, settle
from edgewise.cloud.wrapped import WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.errors import CloudUnavailable
from edgewise.loop.breaker import Breaker
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

_UNPLUGGED = "The cloud was unplugged for this answer."


class Plug:
    """An answer's own: what it does to the cloud and its breaker, other answers do not see.

    Any thread may unplug and plug in, at any time of the answer.
    """

    def __init__(self) -> None:
        self.plugged = True
        """Whether consults reach the cloud."""
        self.pulled = False
        """Whether there was a time when they did not."""
        self._flying: set[Future[Completion]] = set()
        self._breaker: _OwnBreaker | None = None
        self._lock = threading.Lock()

    def cloud(self, model: CloudModel) -> CloudModel:
        """`model`, behind this switch."""
        return _PluggedCloud(model, self)

    def breaker(self, shared: Breaker) -> Breaker:
        """`shared`, and from the first time that this is unplugged on one of the answer's own."""
        own = self._breaker = _OwnBreaker(shared)
        if self.pulled:
            own.part()
        return own

    def unplug(self) -> None:
        """Let the consults that fly fail now, and later ones at once."""
        with self._lock:
            self.plugged, self.pulled = False, True
            cut, self._flying = self._flying, set()
        if self._breaker is not None:
            # Before it hears of any consult that failed for this.
            self._breaker.part()
        for future in cut:
            settle(future, failed(CloudUnavailable(_UNPLUGGED)))

    def plug(self) -> None:
        """Let consults through again, when the answer's breaker next tries one."""
        with self._lock:
            self.plugged = True

    def watched(self, asked: "Future[Completion]") -> "Future[Completion]":
        """A consult that has just left, until it is over or this is unplugged."""
        made: Future[Completion] = Future()
        with self._lock:
            plugged = self.plugged
            if plugged:
                self._flying.add(made)
        made.add_done_callback(lambda _: self._ended(made, asked))
        asked.add_done_callback(lambda done: self._land(made, done))
        if not plugged:
            settle(made, failed(CloudUnavailable(_UNPLUGGED)))
        return made

    def _land(self, made: "Future[Completion]", done: "Future[Completion]") -> None:
        if self._taken(made):
            settle(made, done)

    def _ended(self, made: "Future[Completion]", asked: "Future[Completion]") -> None:
        # Where nobody waits for it any more.
        self._taken(made)
        asked.cancel()

    def _taken(self, made: "Future[Completion]") -> bool:
        """Whoever takes it off the list says how it ends."""
        with self._lock:
            flew = made in self._flying
            self._flying.discard(made)
        return flew


class _PluggedCloud(WrappedCloud):
    """Implements `CloudModel` behind a `Plug`."""

    def __init__(self, cloud: CloudModel, plug: Plug) -> None:
        super().__init__(cloud)
        self._plug = plug

    def open(self, prompt: Prompt) -> "_PluggedSession":
        return _PluggedSession(self.cloud.open(prompt), self._plug)


class _PluggedSession(WrappedSession):
    def __init__(self, session: CloudSession, plug: Plug) -> None:
        super().__init__(session)
        self._plug = plug

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        if not self._plug.plugged:
            return failed(CloudUnavailable(_UNPLUGGED))
        return self._plug.watched(super().ask(ids, n, sampling, deadline, sent))

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return super().push(ids, sent) if self._plug.plugged else 0


class _OwnBreaker(Breaker):
    """A breaker that is shared until its answer parts from the others."""

    def __init__(self, shared: Breaker) -> None:
        self._shared = self._used = shared
        self._probes = False
        self._parting = threading.Lock()

    def part(self) -> None:
        """What happens to this answer is no longer the others' concern."""
        with self._parting:
            if self._used is self._shared:
                if self._probes:
                    # Its outcome will not be known, and another may go.
                    self._shared.forgone()
                self._used = Breaker()

    @property
    def is_open(self) -> bool:
        return self._used.is_open

    def allow(self) -> bool:
        with self._parting:
            allowed = self._used.allow()
            self._probes = allowed and self._used.is_open
            return allowed

    def succeeded(self) -> None:
        with self._parting:
            self._probes = False
            self._used.succeeded()

    def forgone(self) -> None:
        with self._parting:
            self._probes = False
            self._used.forgone()

    def failed(self, *, silent: bool = False) -> None:
        with self._parting:
            self._probes = False
            self._used.failed(silent=silent)
