"""An answer's requests to the cloud, and their cost by price list."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Protocol

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.completion import Completion, metered
from edgewise.costs.price import BilledTokens, Price
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import CloudError
from edgewise.prompts import Prompt
from edgewise_lab.bench.pace import EngineTime
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud, WrappedSession


class CloudRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the cloud for an answer, also one whose reply was not used.

    Of `prompt` tokens sent an earlier request of the same answer had the first `seen`, as prompt or
    reply: a provider's cache may hold them, whatever its rules. `written` tokens came back, or were
    asked for in vain. `cached` and `computed` are prompt tokens by the engine's own meter,
    `engine_seconds` its own time; None where it has none.
    """

    prompt: int
    seen: int
    written: int
    cached: int | None = None
    computed: int | None = None
    engine_seconds: float | None = None


class MeasuredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The measured answer of a system to a question.

    `outcome` has its quality and its duration. `ttft` and `gap` are seconds to the first token, and
    the longest between two, as a user sees them. The edge made `decodes` forward passes over
    `positions` ids in all, prompt included. `sent` and `received` bytes travelled over the link;
    None where there was none.
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
        """The id of what was asked."""
        return self.outcome.question


Cost = Callable[[MeasuredAnswer], tuple[float, float]]
"""Cost of an answer; that of several is the sum of the first over the sum of the second."""


class MeasuredSystem(Protocol):
    """Answers questions one at a time, greedily, and says what each cost."""

    def answer(self, question: Question) -> MeasuredAnswer:
        """Raises a `CloudError` where the cloud fails: a figure would be a mixture."""
        ...


_MICROSECOND = 6


class PriceList(Price, frozen=True, kw_only=True):
    """A price of tokens, and of a `second` of the engine.

    What was seen before is cached where that is `cached_from` tokens or more; never where that is
    None.
    """

    name: str
    second: Decimal = Decimal(0)


def _of_tokens(name: str, cached: str, cached_from: int | None) -> PriceList:
    return PriceList(
        name=name,
        input=Decimal(1),
        cached=Decimal(cached),
        output=Decimal(4),
        cached_from=cached_from,
    )


NO_DISCOUNT = _of_tokens("no cache discount", "1", None)
"""A price without a discount for cached prompts."""

TENTH_OF_LONG = _of_tokens("cached at 10% from 1,024 tokens", "0.1", 1024)
"""Billing of several large providers, which do not cache short prompts."""

FIFTIETH = _of_tokens("cached at 2%", "0.02", 1)
"""About the largest discount in use, for whatever was sent before."""

OWN_GPU = PriceList(
    name="own GPU, by its seconds",
    input=Decimal(0),
    cached=Decimal(0),
    output=Decimal(0),
    second=Decimal("0.001"),
)
"""3.60 an hour; what the engine computes counts, and tokens only so far as they take time."""

PRICE_LISTS = (NO_DISCOUNT, TENTH_OF_LONG, FIFTIETH, OWN_GPU)


def bill(prices: PriceList, requests: Iterable[CloudRequest]) -> Decimal:
    """Cost of an answer's requests, exactly; times to the microsecond.

    The cloud alone is one request, of which nothing was seen. Blocks in which a provider caches
    are not counted: at most one of them a request would be dearer. Raises `ValueError` for invalid
    counts, and for an invalid time if it is priced.
    """
    return sum((_cost(prices, request) for request in requests), Decimal(0))


def _cost(prices: PriceList, request: CloudRequest) -> Decimal:
    prompt, seen, written = request.prompt, request.seen, request.written
    if not (0 <= seen <= prompt and written >= 0):
        raise ValueError(f"{request} has counts that cannot be")
    least = prices.cached_from
    cached = seen if least is not None and seen >= least else 0
    cost = prices.of(BilledTokens(input=prompt - cached, cached=cached, output=written))
    if not prices.second:
        return cost
    seconds = request.engine_seconds
    if seconds is None or not 0 <= seconds < float("inf"):
        raise ValueError(f"{request} has no time, by which {prices.name!r} goes")
    return cost + round(Decimal(seconds), _MICROSECOND) * prices.second


LISTS = {prices.name: prices for prices in PRICE_LISTS}


def metered_seconds(answers: Sequence[MeasuredAnswer]) -> list[MeasuredAnswer]:
    """The same, where requests that were given up have an engine's time.

    Their meter never came: they count as those that were answered, on the average. Where no request
    has a time, none has.
    """
    known = [
        request.engine_seconds
        for answer in answers
        for request in answer.requests
        if request.engine_seconds is not None
    ]
    return [_timed(answer, sum(known) / len(known)) for answer in answers] if known else [*answers]


def priced(prices: PriceList) -> Cost:
    """An answer's bill; NaN where the list asks for a time that no engine reported."""

    def cost(answer: MeasuredAnswer) -> tuple[float, float]:
        if prices.second and any(r.engine_seconds is None for r in answer.requests):
            return float("nan"), 1.0
        return float(bill(prices, answer.requests)), 1.0

    return cost


def engine_seconds(answers: Sequence[MeasuredAnswer]) -> float | None:
    """An answer's mean; None where one is not known."""
    every = [request.engine_seconds for answer in answers for request in answer.requests]
    known = [seconds for seconds in every if seconds is not None]
    return sum(known) / len(answers) if len(known) == len(every) else None


def mean_prompt_tokens_computed(answers: Sequence[MeasuredAnswer]) -> float | None:
    """Mean prompt tokens the engine computed per answer; None without a meter.

    A cancelled request counts the tokens not sent by an earlier request.
    """
    every = [request for answer in answers for request in answer.requests]
    total: int | None = 0
    for request in every:
        given_up = request.computed is None and any(one.computed is not None for one in every)
        total = metered(total, request.prompt - request.seen if given_up else request.computed)
    return None if total is None else total / len(answers)


def _timed(answer: MeasuredAnswer, mean: float) -> MeasuredAnswer:
    requests = tuple(
        replace(one, engine_seconds=mean) if one.engine_seconds is None else one
        for one in answer.requests
    )
    return replace(answer, requests=requests)


class RecordedCloud(WrappedCloud):
    """Implements `CloudModel`: `cloud`, whose consults are kept as `CloudRequest`s.

    For one answer at a time.
    """

    # The engine would read prompts that no request here shows.
    prefetches = False

    def __init__(self, cloud: CloudModel, seconds: EngineTime | None = None) -> None:
        """`seconds` stands in the place of the engine's meter, where the engine is slowed down."""
        super().__init__(cloud, lambda ids, n, send: send())
        self._seconds = seconds
        self._asks: list[_Ask] = []

    def open(self, prompt: Prompt) -> "_RecordedSession":
        """A session whose consults are kept."""
        return _RecordedSession(self.cloud.open(prompt), self._asks)

    def take(self) -> tuple[CloudRequest, ...]:
        """The requests since the last call, in the order in which they were made.

        A declined one does not count: it costs nothing. One that was given up counts with what it
        had asked for, and its meter is not known.
        """
        asks, self._asks[:] = list(self._asks), []
        return tuple(ask.request(self._seconds) for ask in asks if not ask.declined)


class _Ask:
    """A consult for `n` tokens after `ids`, of which the cloud was sent `seen` before."""

    def __init__(
        self, ids: Sequence[int], n: int, earlier: Sequence["_Ask"], future: Flying
    ) -> None:
        self._ids, self._n, self.future = list(ids), n, future
        self.seen = max((common_prefix(ask.held, self._ids) for ask in earlier), default=0)

    @property
    def held(self) -> list[int]:
        """Ids that the cloud holds by now: the prompt, and the reply once it came."""
        completion = self._completion
        return self._ids if completion is None else [*self._ids, *completion.ids]

    @property
    def declined(self) -> bool:
        error = self.future.exception() if self._over else None
        return isinstance(error, CloudError) and error.declined

    @property
    def _completion(self) -> Completion | None:
        # Read here and not in a callback, which may run after who waited goes on.
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
