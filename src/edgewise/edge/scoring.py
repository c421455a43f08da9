"""Logprobs of the ids of a text under an edge model, each id given the ids before it."""

from collections.abc import Generator, Sequence

import msgspec

from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.events import Candidate

# The logits of every position of a long prompt would fill the memory.
ROOM = 32 << 20
"""Most bytes of logits that one batch returns."""

# Larger batches are hardly faster.
MOST = 64
"""Most ids of a batch."""


class Scored(msgspec.Struct, frozen=True):
    """An id of a text with its logprob (nats) and the likeliest ids (`top`) at its position.

    For the first id, which follows nothing, `logprob` is None and `top` empty.
    """

    id: int
    logprob: float | None = None
    top: tuple[Candidate, ...] = ()


def scored(
    model: EdgeModel, ids: Sequence[int], *, top: int = 1
) -> Generator[Sequence[Scored], None, None]:
    """Score `ids` in a new session of `model`; yield them in batches, one `Scored` for each id.

    `top` is the number of likeliest ids to return for each position. Close the
    generator to stop early. Raises `UsageError` if no slot is free or for unknown ids,
    `ContextOverflow` for too many, `ModelError` or `EdgeError` if the engine fails.
    """
    session = model.session(Needs.NOTHING)
    most = max(1, min(MOST, model.context, ROOM // (4 * model.tokenizer.size)))
    try:
        yield [Scored(token) for token in ids[:1]]
        done = 1
        session.open(ids[:done])
        steps: Sequence[Step] = [session.step()] if done < len(ids) else []
        while steps:
            following = ids[done - len(steps) + 1 : done + 1]
            yield [
                Scored(token, step.logprob(token), step.candidates(top))
                for step, token in zip(steps, following, strict=True)
            ]
            # Nothing follows the last id.
            batch = ids[done : min(done + most, len(ids) - 1)]
            steps = session.steps(batch)
            done += len(batch)
    finally:
        session.close()
