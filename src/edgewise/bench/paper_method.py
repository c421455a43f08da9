"""Against the method of the paper's demo (arXiv 2504.07878), over the same link in the same run.

That method has no KV cache on the device (each token reads the whole text again), sends the whole
text with each consult over a new connection, keeps one token of the reply, and waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from edgewise.bench.link import http_target
from edgewise.cloud.engine import EngineCloud
from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.engines.base import Engine
from edgewise.engines.detect import GATEWAY, found_at
from edgewise.engines.named import ENGINES, model_for
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.routers.base import Router
from edgewise.sampling import Sampling
from edgewise.testing.link import Link, Quality


class Every:
    """A router that asks for every `n`-th token: where is no matter when only time counts."""

    needs, top = Needs.HIDDEN, 0

    def __init__(self, n: int) -> None:
        self._n = n

    def score(self, step: Step) -> float:
        """1 where the cloud shall be asked, else 0."""
        return float(step.position % self._n == 0)


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


class PaperMethod:
    """Answers as the demo does."""

    def __init__(
        self, edge: EdgeModel, router: Router, threshold: float, connect: Callable[[], Engine]
    ) -> None:
        """`connect` makes an engine whose first request opens a connection."""
        self._edge, self._router, self._threshold = edge, router, threshold
        self._connect = connect

    def generate(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """`tokens` tokens."""
        session = self._edge.session(self._router.needs, top=self._router.top)
        ids = list(prompt)
        try:
            for _ in range(tokens):
                session.rewind(0)
                session.open(ids)
                step = session.step()
                token = step.proposed
                if self._router.score(step) >= self._threshold:
                    token = asyncio.run(self._consult(ids))
                ids.append(token)
        finally:
            session.close()
        return ids[len(prompt) :]

    async def _consult(self, ids: Sequence[int]) -> int:
        engine = self._connect()
        try:
            async with asyncio.timeout(LONGEST_DEADLINE):
                return (await engine.complete(ids, 1, Sampling())).ids[0]
        finally:
            await engine.close()


class _Round(NamedTuple):
    """Seconds a token of each way, and what the pair's consults did."""

    edge: float
    edgewise: float
    paper: float
    consults: int
    changed: int
    written: int


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
    """Both methods and the edge alone, in turn, on `context` random ids; `tokens` each.

    A consult falls on every 1 / `share`-th token, with both methods. `url` is an engine's,
    plain HTTP, where `model` is one of those it serves; `engine_seconds` are added to each
    consult. Raises `UsageError` or `CloudError`.
    """
    name = asyncio.run(found_at(url, key=key, model=model))
    if name == GATEWAY:
        raise UsageError(
            f"{url!r} is a gateway, and the paper's method asks an engine", hint="name that"
        )
    rng = np.random.default_rng(0)
    prompt = [int(i) for i in rng.integers(10, edge.tokenizer.size // 2, context)]
    router = Every(max(1, round(1 / share)))
    link = Link(*http_target(url), Quality(round_trip=round_trip + engine_seconds))

    def connect() -> Engine:
        make = ENGINES.load(name)
        return make(link.url, key=key, **model_for(make, name, model))

    cloud = EngineCloud(connect())
    try:
        cloud.check(edge.tokenizer)
        alone = Decoder(edge, router=router, policy=Policy(cloud_share=0.0))
        policy = Policy(threshold=0.5, run_ahead=16)
        pair = Decoder(edge, router=router, policy=policy, cloud=cloud)
        paper = PaperMethod(edge, router, 0.5, connect)
        found: list[_Round] = []
        for _ in range(rounds + 1):
            found.append(_round(alone, pair, paper, prompt, tokens))
            done()
    finally:
        cloud.close()
        link.close()
    # The first round warms caches up.
    return _comparison(round_trip, context, tokens, found[1:])


def _round(
    alone: Decoder, pair: Decoder, paper: PaperMethod, prompt: Sequence[int], tokens: int
) -> _Round:
    begun = time.monotonic()
    edge_answer = alone.generate(prompt, max_tokens=tokens)
    middle = time.monotonic()
    answer = pair.generate(prompt, max_tokens=tokens)
    end = time.monotonic()
    written = len(answer.tokens)
    paper.generate(prompt, written)
    return _Round(
        edge=(middle - begun) / len(edge_answer.tokens),
        edgewise=(end - middle) / written,
        paper=(time.monotonic() - end) / written,
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
