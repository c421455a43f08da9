"""Requests to the cloud that were made for answers, and their cost under several price lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.completion import Completion
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import CloudError
from edgewise.prompts import Prompt
from edgewise_lab.bench.pace import EngineTime
from edgewise_lab.evaluation.systems import total
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud, WrappedSession


class CloudRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the cloud for an answer. Requests whose reply was not used count, too.

    Of its `prompt` tokens, the first `seen` were in an earlier request of the same answer or
    in a reply to one, so a provider may have cached them. `written` counts the reply's tokens;
    without a reply, the tokens asked for. By the engine's report `cached` prompt tokens came from
    its cache, `computed` were prefilled; `engine_seconds` is its time. None: not known.
    """

    prompt: int
    seen: int
    written: int
    cached: int | None = None
    computed: int | None = None
    engine_seconds: float | None = None


class PriceList(NamedTuple):
    """Prices of one provider; `name` is shown in the report.

    One prompt token costs `input`, or `cached` if billed as cached; one written token costs
    `output`, and a second of the engine's time `second`. Any unit will do, since the report divides
    bills by each other. If at least `cached_from` tokens of a request were `seen` before (see
    `CloudRequest`), these are billed as cached (None: no token ever is).
    """

    name: str
    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    cached_from: int | None = None
    second: float = 0.0


OWN_GPU = PriceList("own GPU, by its seconds", second=1.0)
"""Bills only the engine's seconds, as for a GPU of one's own."""

PRICE_LISTS = (
    PriceList("no cache discount", 1, 1, 4),
    # Of several large providers, which do not cache short prompts.
    PriceList("cached at 10% from 1,024 tokens", 1, 0.1, 4, 1024),
    # About the largest discount in use, for whatever was sent before.
    PriceList("cached at 2%", 1, 0.02, 4, 1),
    OWN_GPU,
)


def bill(prices: PriceList, requests: Iterable[CloudRequest]) -> float | None:
    """Return the cost in the unit of `prices`; None if it includes engine time that is unknown.

    Providers cache only whole blocks of tokens. This is ignored, so a provider may bill up to one
    block more of each request at the price `input` instead of `cached`.
    """
    return total(_cost(prices, request) for request in requests)


def _cost(prices: PriceList, request: CloudRequest) -> float | None:
    seen, least = request.seen, prices.cached_from
    cached = seen if least is not None and seen >= least else 0
    tokens = (request.prompt - cached) * prices.input + cached * prices.cached
    seconds = request.engine_seconds if prices.second else 0.0
    if seconds is None:
        return None
    return tokens + request.written * prices.output + seconds * prices.second


class RecordedCloud(WrappedCloud):
    """A `CloudModel` that delegates to `cloud` and records every request as a `CloudRequest`.

    Use it for one answer at a time, and call `take` after each answer to get its requests.
    """

    # With prefetches the engine would read prompts that no request here shows.
    prefetches = False

    def __init__(self, cloud: CloudModel, seconds: EngineTime | None = None) -> None:
        """`seconds` computes `engine_seconds`, for a slowed cloud; None: as the engine reports."""
        super().__init__(cloud, lambda ids, n, send: send())
        self._seconds = seconds
        self._asks: list[_Ask] = []

    def open(self, prompt: Prompt) -> "_RecordedSession":
        """Open a session of `cloud` whose consults (requests to it) are recorded for `take`."""
        return _RecordedSession(self.cloud.open(prompt), self._asks)

    def take(self) -> tuple[CloudRequest, ...]:
        """Return the requests since the last call, oldest first, and forget them.

        A request that the engine refused is left out, since it costs nothing. One that was
        cancelled, failed otherwise or is not done yet counts as if all tokens that it asked for
        were written; its `cached` and `computed` are None.
        """
        asks, self._asks[:] = list(self._asks), []
        return tuple(ask.request(self._seconds) for ask in asks if not ask.declined)


class _Ask:
    """A consult for `n` tokens after `ids`, the first `seen` of which the cloud had before."""

    def __init__(
        self, ids: Sequence[int], n: int, earlier: Sequence["_Ask"], future: Flying
    ) -> None:
        self._ids, self._n, self.future = list(ids), n, future
        self.seen = max((common_prefix(ask.held, self._ids) for ask in earlier), default=0)

    @property
    def held(self) -> list[int]:
        """The ids that the cloud has by now: those sent and, once it came, those of its reply."""
        completion = self._completion
        return self._ids if completion is None else [*self._ids, *completion.ids]

    @property
    def declined(self) -> bool:
        error = self.future.exception() if self._over else None
        return isinstance(error, CloudError) and error.declined

    @property
    def _completion(self) -> Completion | None:
        # Read here, not in a callback: whoever waits for the future may go on before it runs.
        return None if not self._over or self.future.exception() else self.future.result()

    @property
    def _over(self) -> bool:
        return self.future.done() and not self.future.cancelled()

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
        super().__init__(session, self._kept)
        self._asks = asks
        self._own: list[_Ask] = []

    def _kept(self, ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        ask = _Ask(ids, n, self._own, send())
        self._own.append(ask)
        self._asks.append(ask)
        return ask.future
