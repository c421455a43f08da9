"""How fast a user's own two models are: a few steps of the edge, a few requests of the cloud."""

import time
from contextlib import closing
from statistics import median
from typing import NamedTuple

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.sampling import Sampling

_ASKED = (Message("user", "Count in words from one to twenty, separated by spaces."),)
_BEGUN = "one two three four"
_STEPS, _FEW, _MORE = 8, 1, 9
_ENOUGH = 4
"""Tokens more in the longer reply, or the difference is all noise."""


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
