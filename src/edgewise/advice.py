"""Advice on a user's own pair: what is fastest and cheapest, and what routing buys here.

Speeds are measured by a few steps and requests (`edge_step`, `cloud_pace`), times and bills follow
by formula from `MeasuredConditions`. How right the answers are no formula knows.
"""

import time
from contextlib import closing
from statistics import median
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.costs.price import Price
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.sampling import Sampling

PROMPT, ANSWER = 500, 300
"""Tokens of the conversation that is reckoned with."""

TYPICAL_CHANGED = 0.5
"""d where it was not measured: 0.44 to 0.60 in docs/results.md."""

System = Literal["edge", "routing", "streaming"]

_NAMES: dict[System, str] = {
    "edge": "the edge alone",
    "routing": "routing",
    "streaming": "streaming from the cloud",
}


_ASKED = (Message("user", "Count in words from one to twenty, separated by spaces."),)
_BEGUN = "one two three four"
_STEPS, _FEW, _MORE = 8, 1, 9
_ENOUGH = 4
"""Tokens more in the longer reply, or the difference is all noise."""

_HALVINGS = 40


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What is advised, and what it follows from; seconds a token.

    `streaming` is None where it could not be measured, `bill` (routing over streaming) without a
    price. Up to `break_even`, a share, routing is no slower than streaming.
    """

    fastest: System
    cheapest: System | None
    edge: float
    routing: float
    streaming: float | None
    break_even: float | None
    bill: float | None
    sentences: tuple[str, str]


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pair: speeds as in `Advice`, and where they come from.

    `share` is p, of which `changed` is d; `assumed` where these were not measured. `free` says why
    nothing is billed, where that is so, `place` of what the speeds are.
    """

    edge: float
    routing: float
    streaming: float | None
    share: float
    changed: float
    assumed: bool
    break_even: float | None
    bill: float | None = None
    free: str | None = None
    place: str = ""


class MeasuredConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the formulas read; times in seconds, lengths in tokens.

    The edge takes `step` a token and `edge_prompt` until its first; the cloud `cloud_token` a token
    that it streams and `cloud_prompt` until its first, without the link. `consult` is the engine's
    time of one consult, `asked` the part of the tokens consulted for (p), `changed` the part of the
    consults whose completion differs from the edge's token (d), `speculate` the most drafts.
    `cached` is the part of a prompt sent again that the provider has cached.
    """

    step: float
    round_trip: float
    consult: float
    cloud_token: float
    edge_prompt: float
    cloud_prompt: float
    prompt: float
    answer: float
    asked: float
    changed: float
    speculate: int = 16
    cached: float = 0.0

    @property
    def trip(self) -> float:
        """RTT + c: a consult as the edge sees it."""
        return self.round_trip + self.consult


class CloudPace(NamedTuple):
    """Seconds: of a `consult`, link and all, of which the `engine`'s own, and a further `token`.

    None where it does not say its own time, and where it ended its answers too soon or was no
    slower with the longer one. `requests` were made, of so many `tokens` in all, prompts included.
    """

    consult: float
    engine: float | None
    token: float | None
    requests: int
    tokens: int


class Money(NamedTuple):
    """A price a token: of prompts, of prompts that were cached, written."""

    input: float
    cached: float
    output: float


def outlook(
    at: MeasuredConditions,
    *,
    streams: bool,
    assumed: bool,
    price: Money | None = None,
    local: bool = False,
) -> Outlook:
    """By the formulas, over answers of `ANSWER` tokens whose prompt both have read.

    `streams` is False where `cloud_token` could not be measured.
    """
    usual = replace(at, prompt=PROMPT, answer=ANSWER, edge_prompt=at.step, cloud_prompt=at.consult)
    billed = None if price is None else bill_cloud(usual, price)
    free = "the cloud model runs on this device" if local and price is None else None
    free = "its price is nothing" if billed == 0 else free
    return Outlook(
        edge=edge_alone(usual) / ANSWER,
        routing=ahead(usual) / ANSWER,
        streaming=cloud_alone(usual) / ANSWER if streams else None,
        share=at.asked,
        changed=at.changed,
        assumed=assumed,
        break_even=break_even(usual) if streams else None,
        bill=bill_pair(usual, price) / billed if price and billed else None,
        free=free,
        place=f"over an answer of {ANSWER} tokens, once the prompt is read",
    )


def advise(found: Outlook) -> Advice:
    """What follows from it."""
    speeds: dict[System, float] = {"edge": found.edge, "routing": found.routing}
    if found.streaming is not None:
        speeds["streaming"] = found.streaming
    order = sorted(speeds, key=lambda system: speeds[system])
    first = f"{_speeds(order, speeds, found)}; {_cost(found)}."
    return Advice(
        fastest=order[0],
        cheapest=None if found.bill is None else "edge",
        edge=found.edge,
        routing=found.routing,
        streaming=found.streaming,
        break_even=found.break_even,
        bill=found.bill,
        sentences=(first, f"{_bought(found)}; {_unknown(found)}."),
    )


def _speeds(order: list[System], speeds: dict[System, float], found: Outlook) -> str:
    best, *others = order
    rest = " and ".join(f"{_NAMES[system]} ({_ms(speeds[system])})" for system in others)
    told = f"Fastest is {_NAMES[best]}, about {_ms(speeds[best])} a token, then {rest}"
    told += f", {found.place}" if found.place else ""
    if found.streaming is None:
        told += "; how fast the cloud streams could not be measured"
    return told


def _cost(found: Outlook) -> str:
    if found.free is not None:
        return f"nothing is billed, since {found.free}"
    if found.bill is None:
        return "what is cheapest is not known without a price"
    ratio = f"{found.bill:.1f} times" if found.bill >= 0.1 else "less than a tenth of"
    cheaper = "routing" if found.bill < 1 else "streaming"
    held = "" if cheaper == "routing" else ", or would if they were not held back"
    return (
        f"cheapest is the edge alone, which bills nothing, and of the two that ask the cloud "
        f"{cheaper}: behind a prompt of {PROMPT} tokens the consults bill {ratio} what streaming "
        f"does{held}"
    )


def _bought(found: Outlook) -> str:
    if not found.share:
        return "Routing at a share of 0% asks for nothing and buys nothing"
    asks = f"Routing at a share of {found.share:.1%}".replace(".0%", "%")
    if found.streaming is None:
        later = _ms(found.routing - found.edge)
        return f"{asks} buys the cloud's word where the edge is unsure, for {later} a token"
    if found.routing <= found.streaming:
        sooner = 1 - found.routing / found.streaming
        return (
            f"{asks} buys the cloud's word where the edge is unsure, in {sooner:.0%} less time "
            "than streaming all of it"
        )
    even = "at no share would it be as fast"
    if found.break_even:
        even = f"it would be as fast up to a share of {found.break_even:.1%}"
    slower = found.routing / found.streaming
    return (
        f"{asks} buys no time here, where it takes {slower:.2g} times as long as streaming "
        f"({even}): it buys that {1 - found.share:.0%} of the words are written on this device "
        "and that answers go on without a link"
    )


def _unknown(found: Outlook) -> str:
    if not found.share:
        return "what a larger one would buy on your questions only `edgewise eval` tells"
    each = f"{found.changed:.0%} of the consults change the token"
    basis = f"that {each} is assumed" if found.assumed else f"{each}, as measured"
    return f"{basis}, and how right it is on your questions only `edgewise eval` tells"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def edge_step(model: EdgeModel) -> float:
    """Seconds a token of the edge, median, behind a short prompt."""
    taken: list[float] = []
    with closing(model.session()) as session:
        session.open(_prompt(model.tokenizer).ids)
        proposed = session.step().proposed
        for _ in range(_STEPS):
            session.extend([proposed])
            begun = time.perf_counter()
            # An engine may compute no sooner than its numbers are read.
            proposed = session.step().proposed
            taken.append(time.perf_counter() - begun)
    return median(taken)


def cloud_pace(cloud: CloudModel, tokenizer: Tokenizer, deadline: float) -> CloudPace:
    """Four short requests, each of which has something new to read, as in an answer.

    `deadline` in seconds a request. Raises a `CloudError`.
    """
    prompt, begun = _prompt(tokenizer), tokenizer.encode(_BEGUN)
    told: list[tuple[float, float | None, int]] = []
    tokens = 0
    with closing(cloud.open(prompt)) as session:
        for more, n in enumerate((_FEW, _FEW, _MORE, _MORE)):
            ids = [*prompt.ids, *begun[:more]]
            left = time.monotonic()
            completion = session.ask(ids, n, Sampling(), deadline).result()
            told.append((time.monotonic() - left, completion.engine_seconds, completion.billed))
            tokens += len(ids) + completion.billed
    # The first one may have opened a connection, and has the prompt to read.
    consult, engine, few = told[1]
    seconds, _, most = min(told[2:], key=lambda one: one[0] / max(1, one[2]))
    token = (seconds - consult) / (most - few) if most - few >= _ENOUGH else 0.0
    return CloudPace(
        consult=consult,
        engine=None if engine is None else min(engine, consult),
        token=token if token > 0 else None,
        requests=len(told),
        tokens=tokens,
    )


def _prompt(tokenizer: Tokenizer) -> Prompt:
    return prompt_of(tokenizer, _ASKED)


def edge_alone(at: MeasuredConditions) -> float:
    """Seconds an answer: the prompt, then a step for each further token."""
    return at.edge_prompt + (at.answer - 1) * at.step


def cloud_alone(at: MeasuredConditions) -> float:
    """Streamed: one round trip, the prompt, then a token at a time.

    On the link tokens follow each other, so it delays the first alone.
    """
    return at.round_trip + at.cloud_prompt + (at.answer - 1) * at.cloud_token


def ahead(at: MeasuredConditions) -> float:
    """1 + p d (RTT + c) / t a token, and what one guess at a time cannot hide.

    A completion that confirms the draft costs nothing while there is more to draft; `excess` is
    what a consult costs on the average.
    """
    return edge_alone(at) + at.answer * at.asked * excess(at)


def excess(at: MeasuredConditions) -> float:
    """Seconds that a consult adds while the edge speculates.

    A completion that differs is waited for in full: d (RTT + c). A confirmed one is waited for only
    where the drafts end before it arrives: behind `speculate` of them, or at the end of the answer,
    near which consults are as likely as elsewhere; and only if no draft on the way was consulted
    for, (1 - p) to their number, since that later completion is then the one waited for. A step
    that has begun is finished: on the average d (1 - d) / 2 steps are lost. Never more than waiting
    costs.
    """
    d, trip = at.changed, at.trip
    partial = d * (1 - d) / 2 * at.step
    return min(trip, d * trip + (1 - d) * _unhidden(at) + partial)


def _unhidden(at: MeasuredConditions) -> float:
    """Of a trip, seconds without anything left to guess: over consults anywhere in the answer."""
    tokens = max(1, round(at.answer))
    # The first guess is the token that the consult is about: its step is done.
    farthest = max(0, at.speculate - 1)
    longest = min(farthest, tokens - 1)

    def waited(guesses: int) -> float:
        return (1 - at.asked) ** guesses * max(0.0, at.trip - guesses * at.step)

    near_end = sum(map(waited, range(longest)))
    return (near_end + (tokens - longest) * waited(longest)) / tokens


def break_even(at: MeasuredConditions) -> float:
    """The share of the tokens up to which the pair is no slower than streaming from the cloud.

    0 where the edge alone is slower already, 1 where the pair is faster with every token asked for.
    """
    gain = cloud_alone(at) - edge_alone(at)
    if gain <= 0:
        return 0.0

    def loses(share: float) -> bool:
        # How much of a consult is hidden depends on how many there are.
        return at.answer * share * excess(replace(at, asked=share)) > gain

    if not loses(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if loses(middle) else (middle, high)
    return low


def money(price: Price) -> Money:
    """A token's part of a price per million."""
    return Money(*(float(one) / 1e6 for one in (price.input, price.cached, price.output)))


def bill_cloud(at: MeasuredConditions, price: Money) -> float:
    """P i + T o: one request, whose prompt nobody sent before."""
    return at.prompt * price.input + at.answer * price.output


def bill_pair(at: MeasuredConditions, price: Money) -> float:
    """Of N = p T consults of a token: each bills its prompt, and half an answer on the average.

    The first one's prompt is new; of each later one a part `cached` costs less. What a guard holds
    back where a price is known (docs/costs.md) is not taken off.
    """
    consults = at.asked * at.answer
    return _prompts(at, price, consults) + consults * price.output


def _prompts(at: MeasuredConditions, price: Money, requests: float) -> float:
    """N (P + T / 2) at the mean price of a prompt token, but for the first, which is new."""
    length = at.prompt + at.answer / 2
    again = at.cached * price.cached + (1 - at.cached) * price.input
    first = min(1.0, requests)
    return length * (first * price.input + (requests - first) * again)
