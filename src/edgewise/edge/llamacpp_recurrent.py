"""What a model that goes back to marks is found to do, by running a few ids through it."""

from typing import NamedTuple

import numpy as np

from edgewise.edge.base import Floats
from edgewise.edge.llamacpp_context import LlamaBatch, LlamaContext

_ATOL = 1e-2  # of the largest logit


class Recurrence(NamedTuple):
    """`state`: bytes of a mark. `hidden`: it hands out hidden states."""

    state: int = 0
    hidden: bool = True


def examine(context: LlamaContext) -> Recurrence:
    """Of a context that holds nothing, before and after. Raises `ModelError`.

    llama.cpp leaves the head out of some hybrids (LFM2) when it hands out hidden states: in the
    place of logits stands what a decode before left there.
    """
    batch = LlamaBatch()
    try:
        batch.belong_to(0)
        rows: list[Floats] = []
        for token, hidden in ((0, False), (1, False), (0, True)):
            context.forget(0, 0)
            batch.clear()
            batch.put([token], 0, every=False, last=True)
            context.decode(batch, hidden=hidden)
            rows.append(context.row(0, hidden=False).logits.copy())
        one = context.state_size(0)
        batch.clear()
        batch.put([1], 1, every=False, last=True)
        context.decode(batch, hidden=False)
        # A window's layers grow with the ids that it holds.
        state = one + (context.state_size(0) - one) * max(context.window - 1, 0)
        context.forget(0, 0)
    finally:
        batch.close()
    plain, _, beside = rows
    right = np.allclose(beside, plain, rtol=0, atol=_ATOL * float(np.abs(plain).max()))
    return Recurrence(state=state, hidden=bool(right))
