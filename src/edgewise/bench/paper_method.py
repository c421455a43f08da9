"""Against the method of the paper's demo (arXiv 2504.07878), over the same link in the same run.

What that method lacks is told in `edgewise.bench.methods`; what each part of ours makes of it is
measured by `edgewise.bench.method_parts`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from edgewise.bench.methods import PAPER, TO_AN_ENGINE, EngineAt, Methods
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.engines.base import Engine
from edgewise.engines.registry import GATEWAY, engine_at, engine_by_ids, model_for
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.testing.link import Quality

_PROSE = """\
The harbour wakes before the town does. Boats that left in the dark come back one after the \
other, low in the water, and the gulls know each of them by its engine. On the quay the buyers \
stand with their hands in their sleeves and say little; whoever speaks first has already paid too \
much. By seven the crates are on ice, by eight the lorries have gone up the hill, and the women \
who mend the nets have taken their places along the wall, out of the wind, where the sun will be \
in an hour. The old pilot walks past them to the end of the mole, looks at the bar, looks at the \
sky, and goes home to write down in a blue book what the day will be. He has been wrong eleven \
times in forty years, and he remembers every one of them. """


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a token, medians over interleaved rounds; `ratio` is the median of the rounds' own.

    `paper` and `edgewise` with a cloud, `edge` alone; prompt and all. `share` is the part of the
    tokens that were consulted for, `changed` of those that then differed from the edge's.
    """

    round_trip: float
    context: int
    tokens: int
    rounds: int
    share: float
    changed: float
    edge: float
    edgewise: float
    paper: float
    ratio: float
    ratio_low: float
    ratio_high: float


class _Round(NamedTuple):
    """Seconds a token of each way, and what the pair's consults did."""

    edge: float
    edgewise: float
    paper: float
    consults: int
    changed: int
    written: int


def prose(tokenizer: Tokenizer, length: int, number: int | None = None) -> list[int]:
    """So many ids of plain English, with a number in front where one is given.

    It begins anew where it is too short.
    """
    ids = tokenizer.encode(_PROSE)
    many = ids * -(-length // len(ids))
    front = [] if number is None else tokenizer.encode(f"{number}. ")
    return [*front, *many][:length]


def served_at(url: str, *, key: str | None = None, model: str | None = None) -> EngineAt:
    """The engine there. Raises `UsageError` for a gateway, or a `CloudError`."""
    name = asyncio.run(engine_at(url, key=key, model=model))
    if name == GATEWAY:
        raise UsageError(
            f"{url!r} is a gateway, and the paper's method asks an engine", hint="name that"
        )
    make = engine_by_ids(name)
    named = model_for(make, name, model)

    def connect(at: str) -> Engine:
        return make(at, key=key, **named)

    return EngineAt(url, connect, key)


def compare(
    edge: EdgeModel,
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    share: float,
    round_trip: float,
    engine_seconds: float,
    context: int,
    tokens: int,
    rounds: int,
    done: Callable[[], None] = lambda: None,
) -> Comparison:
    """Both methods and the edge alone, in turn, after `context` ids of prose; `tokens` each.

    A consult falls on every 1 / `share`-th token, with both methods. `url` is an engine's,
    plain HTTP, where `model` is one of those it serves; `engine_seconds` are added to each
    consult. Raises `UsageError` or `CloudError`.
    """
    served = served_at(url, key=key, model=model)
    prompt = prose(edge.tokenizer, context)
    quality = Quality(round_trip=round_trip + engine_seconds)
    with Methods(edge, served, share=share, quality=quality) as methods:
        alone, pair, paper = (methods.decoder(one) for one in (None, TO_AN_ENGINE, PAPER))
        found: list[_Round] = []
        for _ in range(rounds + 1):
            found.append(_round(alone, pair, paper, prompt, tokens))
            done()
    # The first round warms caches up.
    return _comparison(round_trip, context, tokens, found[1:])


def _round(
    alone: Decoder, pair: Decoder, paper: Decoder, prompt: Sequence[int], tokens: int
) -> _Round:
    begun = time.monotonic()
    edge_answer = alone.generate(prompt, max_tokens=tokens)
    middle = time.monotonic()
    answer = pair.generate(prompt, max_tokens=tokens)
    end = time.monotonic()
    written = len(answer.tokens)
    old = paper.generate(prompt, max_tokens=written)
    return _Round(
        edge=(middle - begun) / len(edge_answer.tokens),
        edgewise=(end - middle) / written,
        paper=(time.monotonic() - end) / len(old.tokens),
        consults=answer.usage.cloud_tokens,
        changed=answer.usage.changing_tokens,
        written=written,
    )


def _comparison(
    round_trip: float, context: int, tokens: int, rounds: Sequence[_Round]
) -> Comparison:
    consults = sum(one.consults for one in rounds)
    ratios = [one.paper / one.edgewise for one in rounds]
    return Comparison(
        round_trip=round_trip,
        context=context,
        tokens=tokens,
        rounds=len(rounds),
        share=consults / sum(one.written for one in rounds),
        changed=sum(one.changed for one in rounds) / max(1, consults),
        edge=median(one.edge for one in rounds),
        edgewise=median(one.edgewise for one in rounds),
        paper=median(one.paper for one in rounds),
        ratio=median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )
