"""What an engine's model can do, by what a few ids show when it is loaded."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from edgewise.edge.base import EdgeAbilities, Floats, Marks
from edgewise.edge.hub_config import told
from edgewise.edge.sequence_cache import Rows, SequenceCache
from edgewise.errors import ModelError

PROBED = 6
"""Ids of a trial."""

_CLOSE = 0.05
"""How far two ways to the same logits may lie apart, of the largest."""


class Tried(NamedTuple):
    """`hidden_size` is 0 where the model shows no hidden state, `marks` where it needs them."""

    hidden_size: int
    abilities: EdgeAbilities
    marks: Marks | None


def try_out(
    new: Callable[[], SequenceCache],
    size: int,
    *,
    slots: int,
    engine: str,
    where: str,
    may_stay: bool = False,
) -> Tried:
    """Run a few of `size` ids through new caches: all at once, one by one, and after going back.

    Raises `ModelError` for a model that does not go on where its cache ends, or back to where it
    was; `may_stay` where the caller has caches that never go back.
    """
    ids = [7 * index % size for index in range(1, PROBED + 1)]
    try:
        rows = _rows(new().run(ids, "all", hidden=True))
        cache = new()
        for token in ids[:-1]:
            cache.run([token], "none")
        cache.mark()
        marks = cache.marks
        last = _rows(cache.run(ids[-1:], "last"))
        able = cache.rewinds
        kept = cache.back(len(ids) - 1)
        again = _rows(cache.run(ids[kept:], "last"))
    except Exception as error:
        raise _refused(where, engine, told(error)) from error
    count, width = rows.logits.shape
    if width != size or not close(rows.logits[-1], last.logits[-1]):
        raise _refused(where, engine, "what it keeps of a text is not what it goes on with")
    came_back = close(rows.logits[-1], again.logits[-1])
    if not kept or (may_stay and not came_back):
        able = "no"
    elif not came_back:
        raise _refused(where, engine, "it does not go back to where it was")
    shown = rows.hidden is not None and len(rows.hidden) == count
    width = int(rows.hidden.shape[-1]) if rows.hidden is not None else 0
    batched = count == len(ids)
    able = EdgeAbilities(hidden=shown, rewinds=able, batch_logits=batched, slots=slots)
    return Tried(width, able, marks)


def close(left: Floats, right: Floats) -> bool:
    """Whether two rows of logits are the same but for rounding; not where they are no numbers."""
    return bool(np.abs(left - right).max() <= _CLOSE * np.abs(left).max())


def _rows(rows: Rows | None) -> Rows:
    assert rows is not None
    return rows


def _refused(where: str, engine: str, why: str) -> ModelError:
    return ModelError(
        f"{where!r} does not decode step by step in {engine} ({why})",
        hint="name a GGUF of the model, or another model",
    )
