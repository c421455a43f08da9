"""What answers cost of the cloud: by price lists, and in its engine's work."""

from collections.abc import Sequence

from msgspec.structs import replace

from edgewise.completion import metered
from edgewise_lab.bench.frontier.base import CloudRequest, MeasuredAnswer
from edgewise_lab.bench.frontier.whole import Cost
from edgewise_lab.bench.price_lists import PRICE_LISTS, PriceList, Request, bill

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
    """An answer's bill; NaN where the list asks for a time that no engine told."""

    def cost(answer: MeasuredAnswer) -> tuple[float, float]:
        if prices.second and any(r.engine_seconds is None for r in answer.requests):
            return float("nan"), 1.0
        return float(bill(prices, map(_request, answer.requests))), 1.0

    return cost


def engine_seconds(answers: Sequence[MeasuredAnswer]) -> float | None:
    """An answer's mean; None where one is not known."""
    every = [request.engine_seconds for answer in answers for request in answer.requests]
    known = [seconds for seconds in every if seconds is not None]
    return sum(known) / len(answers) if len(known) == len(every) else None


def positions_computed(answers: Sequence[MeasuredAnswer]) -> float | None:
    """An answer's mean of prompt tokens, by the engine's meter; None where it has none.

    A request that was given up counts with what no request before it had sent.
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


def _request(request: CloudRequest) -> Request:
    taken = request.engine_seconds
    return Request(
        request.prompt, request.seen, request.written, float("nan") if taken is None else taken
    )
