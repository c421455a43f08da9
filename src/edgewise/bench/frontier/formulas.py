"""What an answer takes each way, and what it is billed, from a few measured conditions.

Seconds an answer are prompt and all; seconds a token are those over the answer's tokens. Every
formula is a function of one `MeasuredConditions`, so that each can be held against a run.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.bench.frontier.speculation_time import expected
from edgewise.loop.price import Price

Way = Literal["edge", "larger edge", "waiting", "ahead", "cloud", "speculation", "pipelined"]

QUALITY: dict[Way, str] = {
    "edge": "the edge's",
    "larger edge": "the larger edge's",
    "waiting": "the pair's",
    "ahead": "the pair's",
    "cloud": "the cloud's",
    "speculation": "the cloud's",
    "pipelined": "the cloud's",
}
"""Whose words come out: speeds of different quality are no alternatives by themselves."""

_HALVINGS = 40

LONGEST_DRAFT = 32
"""Tokens that speculation drafts at most before it has them verified."""


class MeasuredConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the formulas read; times in seconds, lengths in tokens.

    The edge takes `step` a token and `edge_prompt` until its first; the cloud `cloud_token` a token
    that it streams and `cloud_prompt` until its first, without the link. `consult` is the engine's
    time of one consult, `asked` the part of the tokens consulted for (p), `changed` the part of the
    consults whose completion differs from the edge's token (d), `run_ahead` the guesses at most.
    `acceptance` is the part of drafted tokens that stand, each by itself, and `verify` the cloud's
    time for a draft. A larger edge is `larger` times as slow. `cached` is the part of a prompt sent
    again that the provider has cached.
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
    run_ahead: int = 16
    acceptance: float = 0.0
    verify: float = 0.0
    larger: float = 1.0
    cached: float = 0.0

    @property
    def trip(self) -> float:
        """RTT + c: a consult as the edge sees it."""
        return self.round_trip + self.consult


def edge_alone(at: MeasuredConditions) -> float:
    """Seconds an answer: the prompt, then a step for each further token."""
    return at.edge_prompt + (at.answer - 1) * at.step


def larger_edge(at: MeasuredConditions) -> float:
    """As the edge alone, every pass `larger` times as long."""
    return at.larger * edge_alone(at)


def cloud_alone(at: MeasuredConditions) -> float:
    """Streamed: one round trip, the prompt, then a token at a time.

    On the link tokens follow each other, so it delays the first alone.
    """
    return at.round_trip + at.cloud_prompt + (at.answer - 1) * at.cloud_token


def waiting(at: MeasuredConditions) -> float:
    """1 + p (RTT + c) / t a token: each consult stops the edge (arXiv 2504.07878 does so)."""
    return edge_alone(at) + at.answer * at.asked * at.trip


def ahead(at: MeasuredConditions) -> float:
    """1 + p d (RTT + c) / t a token, and what one guess at a time cannot hide.

    A completion that confirms the guess costs nothing while there is something to guess; `excess`
    is what a consult costs on the average.
    """
    return edge_alone(at) + at.answer * at.asked * excess(at)


def excess(at: MeasuredConditions) -> float:
    """Seconds that a consult adds while the edge runs ahead.

    d (RTT + c), that is, a completion that differs is waited for in full. A confirmed one is waited
    for where the guesses end before it is there: behind `run_ahead` of them, or at the end of the
    answer, near which consults are as likely as elsewhere; and only where no guess on the way asked
    for itself, (1 - p) to their number, since its completion comes later and is the one that is
    waited for. Steps are not cut short: the loop begins none unless the completion is a part d of a
    step away, so on the average over where in a step it comes, d (1 - d) / 2 steps are lost. Never
    more than waiting costs.
    """
    d, trip = at.changed, at.trip
    partial = d * (1 - d) / 2 * at.step
    return min(trip, d * trip + (1 - d) * _unhidden(at) + partial)


def _unhidden(at: MeasuredConditions) -> float:
    """Of a trip, seconds without anything left to guess: over consults anywhere in the answer."""
    tokens = max(1, round(at.answer))
    # The first guess is the token that the consult is about: its step is done.
    farthest = max(0, at.run_ahead - 1)
    longest = min(farthest, tokens - 1)

    def waited(guesses: int) -> float:
        return (1 - at.asked) ** guesses * max(0.0, at.trip - guesses * at.step)

    near_end = sum(map(waited, range(longest)))
    return (near_end + (tokens - longest) * waited(longest)) / tokens


def expected_tokens(acceptance: float, draft: int) -> float:
    """Tokens that a verified draft yields, the cloud's own behind it included.

    (1 - a^(k+1)) / (1 - a) of Leviathan et al. (arXiv 2211.17192), equation 1.
    """
    if acceptance >= 1:
        return draft + 1.0
    return (1 - acceptance ** (draft + 1)) / (1 - acceptance)


def speculation(at: MeasuredConditions, draft: int) -> float:
    """Lossless, a draft of so many tokens at a time, each waited for; see `expected`."""
    return _started(at) + at.answer * _each(at, draft, pipelined=False)


def pipelined(at: MeasuredConditions, draft: int) -> float:
    """Lossless, drafting on while completions fly; see `expected`."""
    return _started(at) + at.answer * _each(at, draft, pipelined=True)


def _each(at: MeasuredConditions, draft: int, *, pipelined: bool) -> float:
    a, step, trip, verify = at.acceptance, at.step, at.round_trip, at.verify
    return expected(a, draft, step, trip, verify, pipelined=pipelined)


def _started(at: MeasuredConditions) -> float:
    """Edge and cloud read the prompt side by side."""
    return max(at.edge_prompt, at.round_trip + at.cloud_prompt)


def best_draft(at: MeasuredConditions, seconds: Callable[..., float] = speculation) -> int:
    """The length of drafts with which `speculation`, or `pipelined`, is fastest."""
    return min(range(1, LONGEST_DRAFT + 1), key=lambda draft: seconds(at, draft))


SECONDS: dict[Way, Callable[[MeasuredConditions], float]] = {
    "edge": edge_alone,
    "larger edge": larger_edge,
    "waiting": waiting,
    "ahead": ahead,
    "cloud": cloud_alone,
    "speculation": lambda at: speculation(at, best_draft(at)),
    "pipelined": lambda at: pipelined(at, best_draft(at, pipelined)),
}
"""Seconds an answer, each way."""


def per_token(way: Way, at: MeasuredConditions) -> float:
    """Seconds a token, prompt and all."""
    return SECONDS[way](at) / at.answer


def break_even(at: MeasuredConditions, way: Literal["waiting", "ahead"] = "waiting") -> float:
    """The share of the tokens up to which the pair is no slower than streaming from the cloud.

    0 where the edge alone is slower already, 1 where the pair is faster with every token asked for.
    """
    gain = cloud_alone(at) - edge_alone(at)
    if gain <= 0:
        return 0.0

    def loses(share: float) -> bool:
        # What a consult costs that is run ahead of depends on how many there are.
        each = at.trip if way == "waiting" else excess(replace(at, asked=share))
        return at.answer * share * each > gain

    if not loses(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if loses(middle) else (middle, high)
    return low


class Money(NamedTuple):
    """A price a token: of prompts, of prompts that were cached, written."""

    input: float
    cached: float
    output: float


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


def bill_speculation(at: MeasuredConditions, price: Money, draft: int) -> float:
    """A request for each draft, which is a part of its prompt, for one token more."""
    turns = at.answer / expected_tokens(at.acceptance, draft)
    return _prompts(at, price, turns) + turns * (draft * price.input + price.output)


def _prompts(at: MeasuredConditions, price: Money, requests: float) -> float:
    """N (P + T / 2) at the mean price of a prompt token, but for the first, which is new."""
    length = at.prompt + at.answer / 2
    again = at.cached * price.cached + (1 - at.cached) * price.input
    first = min(1.0, requests)
    return length * (first * price.input + (requests - first) * again)
