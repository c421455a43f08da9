"""What each part of ours makes of the paper's method: one after the other, by itself, left out.

In which order parts are added decides what each seems to give, so all three are told.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from statistics import median
from typing import NamedTuple

import msgspec

from edgewise.loop.decoder import Decoder
from edgewise_lab.bench.methods import OURS, PAPER, Method, Methods

NAMES = {
    "cache": "KV cache on the device",
    "kept": "connection kept",
    "ids": "token ids",
    "pushes": "pushes",
    "ahead": "run-ahead",
}
"""Of parts, in the order in which they are added."""


class Variant(NamedTuple):
    """A method under a name, and the one that it is compared with."""

    name: str
    method: Method
    other: Method


def ladder() -> list[Variant]:
    """From the paper's method to ours, a part at a time."""
    found = [Variant("the paper's method", PAPER, PAPER)]
    for part, name in NAMES.items():
        last = found[-1].method
        found.append(Variant(f"+ {name}", last._replace(**{part: True}), last))
    return found


def each_alone() -> list[Variant]:
    """The paper's method with one part; a push needs ids and a connection, so it is never alone."""
    return [
        Variant(f"the paper's + {name}", PAPER._replace(**{part: True}), PAPER)
        for part, name in NAMES.items()
        if part != "pushes"
    ]


def each_left_out() -> list[Variant]:
    """Ours less one part, and less the pushes where they go with it."""
    found: list[Variant] = []
    for part, name in NAMES.items():
        method = OURS.without(part)
        pushes = " and pushes" if part != "pushes" and not method.pushes else ""
        found.append(Variant(f"ours - {name}{pushes}", method, OURS))
    return found


class MethodTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A method's answers, one a round: `seconds` a token, prompt and all.

    `up` are bytes sent a consult, `computed` ids that the engine computed for one by its own
    meter (None where it was sent text). Of `consults` so many `changed` the edge's token.
    """

    seconds: tuple[float, ...]
    up: float
    computed: float | None
    consults: int
    changed: int

    @property
    def median(self) -> float:
        """Seconds a token."""
        return median(self.seconds)


class RoundRatio(NamedTuple):
    """A ratio: the median of the rounds' own, the lowest and the highest."""

    value: float
    low: float
    high: float


def ratio(above: MethodTimes, below: MethodTimes) -> RoundRatio:
    """How many times as long a token of `above` takes, round by round."""
    found = [one / other for one, other in zip(above.seconds, below.seconds, strict=True)]
    return RoundRatio(median(found), min(found), max(found))


def take_apart(
    methods: Methods,
    wanted: Iterable[Method | None],
    prompt: Callable[[int], Sequence[int]],
    *,
    tokens: int,
    rounds: int,
    done: Callable[[], None] = lambda: None,
) -> dict[Method | None, MethodTimes]:
    """Answers of `tokens` tokens, in turn, `rounds` of each method (None: the edge alone).

    Each round begins with another one. `prompt` gives the ids of a numbered answer: no two should
    begin alike, or one finds cached what another left. `done` is called after each. Raises a
    `CloudError` where a consult fails.
    """
    decoders = {method: methods.decoder(method) for method in dict.fromkeys(wanted)}
    answers: dict[Method | None, list[_Answer]] = {method: [] for method in decoders}
    numbers = count()
    for decoder in decoders.values():
        # Models and connections are warmed up.
        decoder.generate(prompt(next(numbers)), max_tokens=2)
    order = deque(decoders)
    for _ in range(rounds):
        order.rotate(-1)
        for method in order:
            asked = prompt(next(numbers))
            answers[method].append(_answer(decoders[method], asked, tokens, methods))
            done()
    return {method: _measured(found) for method, found in answers.items()}


class _Answer(NamedTuple):
    seconds: float
    up: int
    computed: int | None
    consults: int
    changed: int


def _answer(decoder: Decoder, prompt: Sequence[int], tokens: int, methods: Methods) -> _Answer:
    up, begun = methods.up, time.monotonic()
    answer = decoder.generate(prompt, max_tokens=tokens)
    taken = time.monotonic() - begun
    usage = answer.usage
    return _Answer(
        seconds=taken / len(answer.tokens),
        up=methods.up - up,
        computed=usage.cloud_prompt_computed,
        consults=usage.cloud_calls,
        changed=usage.correction_tokens,
    )


def _measured(answers: Sequence[_Answer]) -> MethodTimes:
    consults = sum(one.consults for one in answers)
    computed = [one.computed for one in answers if one.computed is not None]
    whole = len(computed) == len(answers)
    return MethodTimes(
        seconds=tuple(one.seconds for one in answers),
        up=sum(one.up for one in answers) / max(1, consults),
        computed=sum(computed) / max(1, consults) if whole else None,
        consults=consults,
        changed=sum(one.changed for one in answers),
    )
