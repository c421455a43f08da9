"""What one answer's requests come to by four price lists that stand for those in use.

No provider's prices: input is 1 and output 4 per million tokens, round numbers near what is
published, so that only how cached input is priced differs. What matters is a bill against that of
the cloud alone by the same list.
"""

from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

from edgewise.costs.price import BilledTokens, Price

_MICROSECOND = 6


class Request(NamedTuple):
    """One request of an answer, in the cloud's tokens.

    Of its `prompt` so many were `seen` in an earlier request of the same answer, from the
    beginning on. The engine took `engine_seconds` for it; unknown (NaN) only where no list that is
    asked prices them.
    """

    prompt: int
    seen: int
    written: int
    engine_seconds: float


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
"""Every prompt is read anew, or billed as if it were."""

TENTH_OF_LONG = _of_tokens("cached at 10% from 1,024 tokens", "0.1", 1024)
"""As several large providers do: short prompts are cached by none of them."""

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


def bill(prices: PriceList, requests: Iterable[Request]) -> Decimal:
    """What an answer's requests cost, exactly; times to the microsecond.

    The cloud alone is one request, of which nothing was seen. Blocks in which a provider caches
    are not counted: at most one of them a request would be dearer. Raises `ValueError` for counts
    that cannot be, and for a time that is none where it is priced.
    """
    return sum((_cost(prices, request) for request in requests), Decimal(0))


def _cost(prices: PriceList, request: Request) -> Decimal:
    prompt, seen, written, seconds = request
    if not (0 <= seen <= prompt and written >= 0):
        raise ValueError(f"{request} has counts that cannot be")
    least = prices.cached_from
    cached = seen if least is not None and seen >= least else 0
    cost = prices.of(BilledTokens(input=prompt - cached, cached=cached, output=written))
    if not prices.second:
        return cost
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{request} has no time, by which {prices.name!r} goes")
    return cost + round(Decimal(seconds), _MICROSECOND) * prices.second
