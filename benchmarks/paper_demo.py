"""Against the method of the paper's demo (arXiv 2504.07878), over the same link in the same run.

The demo has no KV cache on the device (each token reads the whole text again), sends the whole
text with each consult over a new connection, keeps one token of the reply, and waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.cloud.engine import EngineCloud
from edgewise.completion import Completion
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step, Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.engines.base import COMPLETIONS, NOBODY, Client
from edgewise.engines.http import HttpEngine
from edgewise.engines.registry import GATEWAY, engine_at, engine_by_ids, model_for
from edgewise.engines.replies import TextReader, TextRequest, sampling_fields
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.sampling import Sampling
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.link import http_target

SPECULATE = 16
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"

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


def prose(tokenizer: Tokenizer, length: int) -> list[int]:
    """So many ids of plain English; it begins anew if it is too short."""
    ids = tokenizer.encode(_PROSE)
    return (ids * -(-length // len(ids)))[:length]


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
    name = asyncio.run(engine_at(url, key=key, model=model))
    if name == GATEWAY:
        raise UsageError(
            f"{url!r} is a gateway, and the paper's method asks an engine", hint="name that"
        )
    make = engine_by_ids(name)
    named = model_for(make, name, model)
    prompt = prose(edge.tokenizer, context)
    router = Every(max(1, round(1 / share)))
    quality = Quality(round_trip=round_trip + engine_seconds)
    # A consult that fails ends the answer: what is measured has none.
    policy = Policy(threshold=0.5, deadline=LONGEST_DEADLINE, on_cloud_error="raise")
    with ExitStack() as stack:
        link = stack.enter_context(closing(Link(*http_target(url), quality)))
        ours = stack.enter_context(closing(EngineCloud(make(link.url, key=key, **named))))
        ours.check(edge.tokenizer)
        served = ours.engine.described.model
        text = TextCompletions(link.url, edge.tokenizer, key=key, model=served)
        theirs = stack.enter_context(closing(PlainCloud(text, edge.tokenizer)))
        uncached: Any = UncachedEdge(edge)
        ahead = replace(policy, speculate=SPECULATE)
        alone = Decoder(edge, router=router, policy=Policy(cloud_share=0.0))
        pair = Decoder(edge, router=router, policy=ahead, cloud=ours)
        paper = Decoder(uncached, router=router, policy=policy, cloud=theirs)
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
        changed=answer.usage.correction_tokens,
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


class Every:
    """A router that asks at every `n`-th token: where is no matter when only time counts."""

    needs, top = Needs.HIDDEN, 0

    def __init__(self, n: int) -> None:
        self._n = n

    def score(self, step: Step) -> float:
        """1 where the cloud shall be asked, else 0."""
        return float(step.position % self._n == 0)


class TextCompletions(HttpEngine):
    """Implements `Engine` by text: `/v1/completions`, where the engine tokenises all of it again.

    What comes back becomes ids of `tokenizer`'s, whatever the cloud's own were; it can be another
    token. Where the engine wrote no whole character the device shows what it shows for such.
    """

    dialect = "completions"

    def __init__(
        self, url: str, tokenizer: Tokenizer, *, key: str | None = None, model: str | None = None
    ) -> None:
        super().__init__(url, key=key, model=model)
        self._tokenizer = tokenizer

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        text = bytes_of(self._tokenizer, ids).decode("utf-8", "replace")
        body: dict[str, Any] = {
            "model": await self.model_name(),
            "prompt": text,
            "max_tokens": n,
            **sampling_fields(sampling, len(ids)),
        }
        reader = TextReader(self.url, self.dialect, TextRequest((), text, n))
        said = reader.completion(await self.post(COMPLETIONS, body, client))
        written = self._tokenizer.encode(said.text)[:n]
        if not written and not said.ended:
            written = self._tokenizer.encode(_UNKNOWN)[:n]
        none = (None,) * len(written)
        return Completion(ids=tuple(written), logprobs=none, stopped=said.ended)


class PlainCloud(EngineCloud):
    """Implements `CloudModel` as `EngineCloud`: nothing is proven, each consult connects anew."""

    def __init__(self, engine: HttpEngine, tokenizer: Tokenizer) -> None:
        super().__init__(engine)
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self._size = tokenizer.size

    async def complete(
        self, ids: list[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        client = replace(client, trace={**client.trace, "Connection": "close"})
        return await super().complete(ids, n, sampling, client)


class UncachedEdge:
    """Implements `EdgeModel`: `model`, whose sessions keep ids and no cache of them."""

    def __init__(self, model: EdgeModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "_UncachedSession":
        return _UncachedSession(self._model.session(needs, top=top))


class _UncachedSession:
    def __init__(self, session: EdgeSession) -> None:
        self._session = session
        self._ids: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        self._ids = list(ids)
        return 0

    def extend(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def rewind(self, position: int) -> None:
        del self._ids[position:]

    def mark(self, position: int) -> None:
        """There is nothing to go back to."""

    def step(self) -> Step:
        self._forget()
        return self._session.step()

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        self._forget()
        steps = self._session.steps(ids)
        self._ids += ids
        return steps

    def _forget(self) -> None:
        """What was computed is only queued again."""
        self._session.rewind(0)
        self._session.open(self._ids)
