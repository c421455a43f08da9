"""Seconds a token at a point of the map, each way, by the formulas."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.frontier_map.inputs import Inputs, scaled
from edgewise.advice import MeasuredConditions, ahead, cloud_alone, edge_alone
from edgewise_lab.bench.frontier.speculation_time import computed_time
from edgewise_lab.bench.paced_engine import EnginePace

WAYS = ("cloud", "speculation", "larger edge", "ahead")
"""What the map compares; the edge alone is faster than what is made of it, everywhere."""

NAMES = {
    "cloud": "cloud alone, streamed",
    "speculation": "lossless speculation",
    "larger edge": "larger edge",
    "ahead": "Edgewise, running ahead",
    "edge": "edge alone",
}
LARGER = 1.45
DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16)
LEAST_PIPELINED = 4
"""Tokens a draft at least where drafting goes on: else each token would be a request of its own."""
_REPLAYED = 32


class Drafting(NamedTuple):
    """How speculation goes about it."""

    draft: int
    pipelined: bool


class Predicted(NamedTuple):
    """Seconds a token by way, and with which drafts speculation is fastest."""

    seconds: dict[str, float]
    drafting: Drafting

    def fastest(self, ways: Sequence[str] = WAYS) -> str:
        return min(ways, key=lambda way: self.seconds[way])


def conditions(
    inputs: Inputs, step: float, round_trip: float, slower: float = 0.0
) -> MeasuredConditions:
    """Those of the pair's answers, at this point; a pass takes `slower` seconds more than told."""
    pace = scaled(step)
    return MeasuredConditions(
        step=step + slower,
        round_trip=round_trip,
        consult=inputs.engine.consult,
        cloud_token=inputs.engine.token,
        edge_prompt=float(np.mean([pace.of(prompt) for prompt in inputs.prompts])) + slower,
        cloud_prompt=inputs.engine.first,
        prompt=float(np.mean(inputs.prompts)),
        answer=inputs.answers["pair"].mean,
        asked=inputs.asked,
        changed=inputs.changed,
    )


def predicted(
    inputs: Inputs,
    pace: EnginePace,
    step: float,
    round_trip: float,
    *,
    slower: float = 0.0,
    drafting: Drafting | None = None,
) -> Predicted:
    """At this point; with the best `drafting` where none is given."""
    at = conditions(inputs, step, round_trip, slower)

    # What is slower here is so by pass, not in proportion.
    larger = conditions(inputs, LARGER * step, round_trip, slower)

    def alone(model: str, at: MeasuredConditions = at) -> MeasuredConditions:
        return replace(at, answer=inputs.answers[model].mean)

    drafting = drafting or _best(inputs, pace, at)
    seconds = {
        "edge": _per_token(edge_alone, alone("edge")),
        "larger edge": _per_token(edge_alone, alone("larger edge", larger)),
        "cloud": _per_token(cloud_alone, alone("cloud")),
        "ahead": _per_token(ahead, at),
        "speculation": replayed(inputs, pace, at, drafting),
    }
    return Predicted(seconds, drafting)


def _per_token(seconds: Callable[[MeasuredConditions], float], at: MeasuredConditions) -> float:
    return seconds(at) / at.answer


def _best(inputs: Inputs, pace: EnginePace, at: MeasuredConditions) -> Drafting:
    """The best draft length, plain or pipelined, over the first questions."""
    every = [
        Drafting(draft, late)
        for draft, late in product(DRAFTS, (False, True))
        if not late or draft >= LEAST_PIPELINED
    ]
    return min(every, key=lambda one: replayed(inputs, pace, at, one, most=_REPLAYED))


def replayed(
    inputs: Inputs,
    pace: EnginePace,
    at: MeasuredConditions,
    drafting: Drafting,
    most: int | None = None,
) -> float:
    """Seconds a token of speculation over the agreement of so many answers."""
    edge = scaled(at.step)
    seconds = tokens = 0.0
    for prompt, matches in zip(inputs.prompts[:most], inputs.agreement[:most], strict=True):
        tokens += len(matches)
        seconds += computed_time(
            matches,
            draft=drafting.draft,
            pipelined=drafting.pipelined,
            edge_step=at.step,
            round_trip=at.round_trip,
            verify=pace.of(1, drafting.draft + 1),
            edge_prompt=edge.of(prompt),
            verify_prompt=pace.of(1, prompt),
            edge_pair=edge.of(2),
        )
    return seconds / tokens
