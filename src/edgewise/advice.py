"""Advice on a user's own pair: whether the edge alone, the pair or the cloud alone serves best.

If both models share a machine, their decoding itself is timed (`decoded`). Otherwise a few steps of
the edge model (`edge_step`) and a few requests to the cloud model (`cloud_pace`) are. Formulas then
give the time of an answer of `ANSWER` tokens after a prompt of `PROMPT` tokens that both models
have read. Costs always come from formulas. Nothing here says how right the answers are.
"""

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.completion import Completion
from edgewise.costs.price import Price
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.errors import CloudRejected
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Budget
from edgewise.prompts import Message, Prompt, prompt_of

PROMPT, ANSWER = 500, 300
"""Tokens of the prompt and of the answer in the typical conversation."""

TYPICAL_CHANGED = 0.5
"""The share of consults that change the edge's token, assumed without a measurement of the pair:
docs/results.md."""

CORRECTED, BLOCK = {"on": 0.034, "exact": 0.062}, 5
"""For either value of `verify` the share of tokens that the cloud corrects, and the tokens of a
verified block: docs/results.md."""

System = Literal["edge", "routing", "streaming"]

_NAMES: dict[System, str] = {"edge": "edge", "routing": "pair", "streaming": "cloud streamed"}

_BEST = ". The best answers are the cloud's own, and --verify exact writes the same"

_COUNT = "Count in words from one to twenty, separated by spaces."
_LINE = "The heron stands in the shallow water and waits, line {} of a text that is the same. "
_BEGUN = "one two three four"
# Edge steps that are timed; then tokens of a short and a long reply: their difference is writing.
_STEPS, _FEW, _MORE = 8, 1, 9
# Tokens more in the longer reply, or the difference is all noise.
_ENOUGH = 4

_WRITTEN = (
    "Why is the sky blue? Explain it to a child.",
    "Write a letter to a neighbour whose dog barks at night.",
)
DECODED = 60
"""The most tokens that a system writes while `decoded` times it, over all prompts. An answer is cut
once it has taken `_LONGEST` seconds."""
# Nobody waits longer for a diagnosis; a median of fewer tokens says enough.
_LONGEST = 10.0
_SPAN = 5
# Both models share the machine: for less than this, the better words are worth more.
_WORTH = 0.9


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The advice and the figures behind it.

    `edge`, `routing` and `streaming` are the seconds per token of the edge model alone, of the
    pair, and of the cloud model alone, which streams its answer (None: not measured). `fastest`
    names the least of them. `cost_ratio` is the pair's cost divided by the cost of streaming; None
    without a price, or if streaming is free. `sentences` are on speed, on cost, and on what to do.
    """

    fastest: System
    edge: float
    routing: float
    streaming: float | None
    cost_ratio: float | None
    sentences: tuple[str, str, str]


class MeasuredConditions(msgspec.Struct, frozen=True, kw_only=True):
    """The measured inputs of this module's formulas; times are in seconds.

    `step` is the edge model's time per token, and `cloud_token` the cloud model's when it streams
    (None: not measured). A consult (one question to the cloud model) takes `round_trip` on the link
    and `consult` in the engine. `asked` is the share of the answer's tokens for which a router asks
    the cloud or, if the cloud verifies, of those that it corrects. `changed` is the share of
    consults whose completion differs from the edge's token, and `speculate` the most draft tokens
    that the edge writes during a consult. When a prompt is sent again, the provider has the share
    `cached` of it in its cache. `verify` is the time to verify a block of `BLOCK` draft tokens,
    round trip included; None if the cloud does not verify.
    """

    step: float
    round_trip: float
    consult: float
    cloud_token: float | None
    asked: float
    changed: float
    speculate: int = 16
    cached: float = 0.0
    verify: float | None = None

    @property
    def trip(self) -> float:
        """The time from sending a consult to its completion: `round_trip` plus `consult`."""
        return self.round_trip + self.consult


class DecodedPace(NamedTuple):
    """Seconds per token of each system, prefill included; `cloud` is None if it wrote nothing."""

    edge: float
    pair: float
    cloud: float | None


class CloudPace(NamedTuple):
    """What a few requests to the cloud model showed; times are in seconds.

    `first` is the time of the first consult, which has the prompt to read, `consult` that of a
    later one for one token, and `token` that of each further token in a reply. `token` is None if
    the replies ended too soon, or if longer replies took no longer. `engine` is the part of
    `consult` that the engine reports as its own, None without a report. `verify` is the time to
    verify `BLOCK` tokens, None if the cloud cannot. When a prompt of `prompt` tokens was sent
    again, the engine computed `computed` of them anew, None without a usage report. `requests` is
    the number of all requests, and `tokens` that of all tokens in them, prompts and replies.
    """

    first: float
    consult: float
    engine: float | None
    token: float | None
    prompt: int
    computed: int | None
    requests: int
    tokens: int
    verify: float | None = None


def advise(
    conditions: MeasuredConditions,
    *,
    price: Price | None = None,
    local: bool = False,
    routing: float | None = None,
    streaming: float | None = None,
    place: str = f"over an answer of {ANSWER} tokens, once the prompt is read",
) -> Advice:
    """Return advice from measured `conditions` and the cloud model's `price` (None: unknown).

    `routing` and `streaming` are measured seconds per token, as in `Advice`; without them formulas
    give them. `local`: the cloud model runs on this device, so without a price nothing is billed.
    `place` is the part of the sentence on speed that says for which answers the speeds hold.
    """
    speeds: dict[System, float] = {
        "edge": conditions.step,
        "routing": routing or conditions.step + conditions.asked * excess(conditions),
    }
    if (streaming := streaming or cloud_alone(conditions)) is not None:
        speeds["streaming"] = streaming
    fastest = min(speeds, key=lambda system: speeds[system])
    names = _NAMES | {"streaming": "cloud alone"} if local else _NAMES
    each = " · ".join(f"{names[system]} {_ms(seconds)}" for system, seconds in speeds.items())
    unknown = ", the cloud streamed: not measured" if streaming is None else ""
    ratio = None if price is None else cost_over_streaming(conditions, price)
    return Advice(
        fastest=fastest,
        edge=speeds["edge"],
        routing=speeds["routing"],
        streaming=streaming,
        cost_ratio=ratio,
        sentences=(
            f"{each} a token{unknown}, {place}: {names[fastest]} is fastest",
            _cost(price, ratio, local=local),
            _what_to_do(conditions, speeds["routing"], streaming, local=local)
            + ("" if conditions.verify is None else _BEST),
        ),
    )


def _cost(price: Price | None, ratio: float | None, *, local: bool) -> str:
    if price is None:
        free = "nothing is billed: the cloud model runs on this device"
        return free if local else "unknown without a price"
    if ratio is None:
        return "nothing is billed: its price is nothing"
    times = f"{ratio:.1f} times" if ratio >= 0.1 else "less than a tenth of"
    return (
        f"edge nothing · pair {times} what streaming costs, with a prompt of {PROMPT} tokens and "
        f"an answer of {ANSWER}"
    )


def _what_to_do(
    conditions: MeasuredConditions, routing: float, streaming: float | None, *, local: bool
) -> str:
    if not conditions.asked:
        return "with a cloud share of 0 the edge writes alone"
    way, gain = "route", "the cloud writes where the edge is unsure"
    if conditions.verify is not None:
        way, gain = "verify", "the cloud reads every token"
    if streaming is None:
        return f"the pair takes {_ms(routing - conditions.step)} a token more than the edge alone"
    if routing <= (_WORTH if local else 1) * streaming:
        return (
            f"{way}: {1 - routing / streaming:.0%} less time than "
            f"{'the large model alone' if local else 'streaming'}, and {gain}"
        )
    slower = f"the pair takes {routing / streaming:.2g} times as long"
    if local:
        return f"use the large model alone: {slower} on this device"
    return (
        f"stream from the cloud: {slower}. {way.capitalize()} if answers must go on offline, or "
        "the cloud's time is what you pay for"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def decoded(
    pair: Decoder, cloud: CloudModel, done: Callable[[], None] = lambda: None
) -> DecodedPace:
    """Time answers of the edge alone, the pair and the cloud alone to two prompts.

    Each of the six answers is cut after 30 tokens (`DECODED` / 2) or 10 seconds; `done` is called
    after each. Raises a `CloudError` if the cloud does not answer.
    """
    most, budgets = DECODED // len(_WRITTEN), [Budget()]

    def by_edge(prompt: Prompt) -> Generator[int]:
        policy = pair.policy.edge_alone()
        with pair.stream(prompt, max_tokens=most, policy=policy) as events:
            yield from (isinstance(event, Token) for event in events)

    def by_pair(prompt: Prompt) -> Generator[int]:
        left, at_end = budgets[-1], budgets.append
        with pair.stream(prompt, max_tokens=most, budget=left, at_end=at_end) as events:
            yield from (isinstance(event, Token) for event in events)

    systems = [by_edge, by_pair, partial(_by_cloud, cloud, most)]
    paces = [_Pace() for _ in systems]
    both = [prompt_of(pair.edge.tokenizer, [Message("user", text)]) for text in _WRITTEN]
    # The second prompt in reverse: no system always comes after the same other one.
    for prompt, places in zip(both, ((0, 1, 2), (2, 1, 0)), strict=True):
        for place in places:
            paces[place].time(systems[place](prompt))
            done()
    edge, routing, large = (one.seconds / max(1, one.tokens) for one in paces)
    return DecodedPace(edge, routing, large if paces[2].tokens else None)


class _Pace:
    """The seconds that one system's answers took, and the number of tokens in them."""

    seconds, tokens = 0.0, 0

    def time(self, written: Generator[int]) -> None:
        begun = time.monotonic()
        with closing(written):
            for tokens in written:
                self.tokens += tokens
                if time.monotonic() - begun > _LONGEST:
                    break
        self.seconds += time.monotonic() - begun


def _by_cloud(cloud: CloudModel, most: int, prompt: Prompt) -> Generator[int]:
    ids, end = list(prompt.ids), len(prompt.ids) + most
    with closing(cloud.open(prompt)) as session:
        while len(ids) < end:
            asked = ConsultRequest(ids, min(_SPAN, end - len(ids)), math.inf)
            reply = session.ask(asked).result()
            ids = [*ids, *reply.ids]
            yield len(reply.ids)
            if reply.stopped or not reply.ids:
                return


def edge_step(model: EdgeModel) -> float:
    """Return the median seconds per token of the edge model, after a short prompt."""
    taken: list[float] = []
    with closing(model.session()) as session:
        session.open(prompt_of(model.tokenizer, [Message("user", _COUNT)]).ids)
        proposed = session.step().proposed
        for _ in range(_STEPS):
            session.extend([proposed])
            begun = time.perf_counter()
            # An engine may compute no sooner than its numbers are read.
            proposed = session.step().proposed
            taken.append(time.perf_counter() - begun)
    return median(taken)


def cloud_pace(
    cloud: CloudModel, tokenizer: Tokenizer, deadline: float, *, lines: Sequence[int] = (0,)
) -> CloudPace:
    """Time four requests to the cloud model, or five if it can verify; they share a prompt.

    `lines` are numbers of extra lines in this prompt: the next is tried if the engine rejects one.
    `deadline` is in seconds per request. Raises a `CloudError` if the last try fails.
    """
    for count in lines[:-1]:
        # The engine may have no room for so long a prompt.
        with suppress(CloudRejected):
            return _paced(cloud, tokenizer, deadline, count)
    return _paced(cloud, tokenizer, deadline, lines[-1])


def _paced(cloud: CloudModel, tokenizer: Tokenizer, deadline: float, lines: int) -> CloudPace:
    text = "".join(map(_LINE.format, range(lines))) + _COUNT
    prompt, begun = prompt_of(tokenizer, [Message("user", text)]), tokenizer.encode(_BEGUN)
    seconds: list[float] = []
    replies: list[Completion] = []
    with closing(cloud.open(prompt)) as session:
        for more, n in enumerate((_FEW, _FEW, _MORE, _MORE, *[0] * cloud.verifies)):
            left, verify = time.monotonic(), 0 if n else BLOCK
            # One token more of a begun answer each time: as in an answer, there is always something
            # new to read.
            ids = [*prompt.ids, *(begun * BLOCK)[: more + verify]]
            replies.append(session.ask(ConsultRequest(ids, n, deadline, verify=verify)).result())
            seconds.append(time.monotonic() - left)
    # The first one may have opened a connection, and has the prompt to read.
    consult, engine, few = seconds[1], replies[1].engine_seconds, replies[1].billed
    # The better of two: what disturbs a request only makes it longer.
    longest, most = min(
        zip(seconds[2:4], (reply.billed for reply in replies[2:4]), strict=True),
        key=lambda one: one[0] / max(1, one[1]),
    )
    token = (longest - consult) / (most - few) if most - few >= _ENOUGH else 0.0
    computed, cached = replies[3].computed, replies[3].cached
    read = 0 if computed is None or cached is None else computed + cached
    return CloudPace(
        first=seconds[0],
        consult=consult,
        engine=None if engine is None else min(engine, consult),
        token=token if token > 0 else None,
        prompt=read or len(prompt.ids),
        computed=computed if read else None,
        requests=len(replies),
        tokens=BLOCK * cloud.verifies
        + sum(len(prompt.ids) + more + reply.billed for more, reply in enumerate(replies)),
        verify=seconds[4] if cloud.verifies else None,
    )


def cloud_alone(conditions: MeasuredConditions) -> float | None:
    """Return the cloud's seconds per token if it streams `ANSWER` tokens; None if unknown."""
    if conditions.cloud_token is None:
        return None
    # Only the first token takes a whole trip.
    return (conditions.trip + (ANSWER - 1) * conditions.cloud_token) / ANSWER


def excess(conditions: MeasuredConditions) -> float:
    """Return an answer's mean delay in seconds by a consult (if the cloud verifies, a correction).

    If the completion differs from the edge's token (in the share `changed` of consults), the answer
    waits for all of the consult, else for what is left of it once the edge has written its
    `speculate` drafts. A correction costs the whole verification and, as drafts are lost, (`BLOCK`
    + 1) / 2 steps of the edge.
    """
    if conditions.verify is not None:
        # All drafts behind a correction are lost.
        return conditions.verify + conditions.step * (BLOCK + 1) / 2
    # The first draft saves no time: it is the edge's own token, known before the cloud was asked.
    hidden = min(conditions.trip, max(0, conditions.speculate - 1) * conditions.step)
    return conditions.trip - (1 - conditions.changed) * hidden


def cost_over_streaming(conditions: MeasuredConditions, price: Price) -> float | None:
    """Return an answer's cost by consults divided by its cost streamed; None if streaming is free.

    Streaming is one request: `PROMPT` tokens at the price of input, `ANSWER` tokens at that of
    output. A router makes `asked` times `ANSWER` consults. Each bills the prompt, on average half
    an answer, and the one token that it returns. If the cloud verifies, each block of `BLOCK`
    tokens is a consult. Limits on cost (docs/costs.md) are not considered.
    """
    new, cached, written = (float(one) for one in (price.input, price.cached, price.output))
    streaming = PROMPT * new + ANSWER * written
    if not streaming:
        return None
    consults = conditions.asked * ANSWER if conditions.verify is None else ANSWER / BLOCK
    # A verdict has no output token.
    written *= conditions.verify is None
    again = conditions.cached * cached + (1 - conditions.cached) * new
    # All that the first consult sends is new to the provider.
    first = min(1.0, consults)
    prompts = (PROMPT + ANSWER / 2) * (first * new + (consults - first) * again)
    return (prompts + consults * written) / streaming
