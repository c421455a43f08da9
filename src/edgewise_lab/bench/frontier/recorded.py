"""Every request that an answer makes of the cloud, as it is billed: also those made in vain."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.cloud.wrapped import WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.edge.kv import common_prefix
from edgewise.errors import CloudError
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise_lab.bench.frontier.base import CloudRequest

EngineTime = Callable[[int, int], float]
"""From tokens written and prompt tokens computed to an engine's seconds: `EnginePace.of`."""


class RecordedCloud(WrappedCloud):
    """Implements `CloudModel`: `cloud`, whose consults are kept as `CloudRequest`s.

    For one answer at a time; nothing is pushed ahead of consults.
    """

    def __init__(self, cloud: CloudModel, seconds: EngineTime | None = None) -> None:
        """`seconds` stands in the place of the engine's meter, where the engine is slowed down."""
        super().__init__(cloud)
        self._seconds = seconds
        self._asks: list[_Ask] = []

    def open(self, prompt: Prompt) -> "_RecordedSession":
        """A session whose consults are kept."""
        return _RecordedSession(self.cloud.open(prompt), self._asks)

    def take(self) -> tuple[CloudRequest, ...]:
        """The requests since the last call, in the order in which they were made.

        One that was declined is none: it costs nothing. One that was given up counts with what it
        had asked for, and its meter is not known.
        """
        asks, self._asks[:] = list(self._asks), []
        return tuple(ask.request(self._seconds) for ask in asks if not ask.declined)


class _Ask:
    """A consult for `n` tokens after `ids`, of which the cloud was sent `seen` before."""

    def __init__(
        self, ids: Sequence[int], n: int, earlier: Sequence["_Ask"], future: "Future[Completion]"
    ) -> None:
        self._ids, self._n, self._future = list(ids), n, future
        self.seen = max((common_prefix(ask.held, self._ids) for ask in earlier), default=0)

    @property
    def held(self) -> list[int]:
        """What the cloud has of it by now: the prompt, and the reply once it came."""
        completion = self._completion
        return self._ids if completion is None else [*self._ids, *completion.ids]

    @property
    def declined(self) -> bool:
        error = self._future.exception() if self._over else None
        return isinstance(error, CloudError) and error.declined

    @property
    def _completion(self) -> Completion | None:
        # Read here and not in a callback, which may run after who waited goes on.
        return None if not self._over or self._future.exception() else self._future.result()

    @property
    def _over(self) -> bool:
        return self._future.done() and not self._future.cancelled()

    def request(self, seconds: EngineTime | None) -> CloudRequest:
        completion, prompt = self._completion, len(self._ids)
        if completion is None:
            taken = None if seconds is None else seconds(self._n, prompt - self.seen)
            return CloudRequest(
                prompt=prompt, seen=self.seen, written=self._n, engine_seconds=taken
            )
        prompt = prompt if completion.prompt is None else completion.prompt
        seen = min(self.seen, prompt)
        computed = prompt - seen if completion.computed is None else completion.computed
        taken = (
            completion.engine_seconds if seconds is None else seconds(completion.billed, computed)
        )
        return CloudRequest(
            prompt=prompt,
            seen=seen,
            written=completion.billed,
            cached=completion.cached,
            computed=completion.computed,
            engine_seconds=taken,
        )


class _RecordedSession(WrappedSession):
    def __init__(self, session: CloudSession, asks: list[_Ask]) -> None:
        super().__init__(session)
        self._asks = asks
        self._own: list[_Ask] = []

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        future = super().ask(ids, n, sampling, deadline, sent)
        ask = _Ask(ids, n, self._own, future)
        self._own.append(ask)
        self._asks.append(ask)
        return future

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        # The engine would read prompts that no request here shows.
        return 0
