"""What the built-in edge engines share: a model over slots, and the trial of a loaded one."""

import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from edgewise.edge.base import Checkpoints, EdgeAbilities, EdgeModel, EdgeOptions, Floats, Needs
from edgewise.edge.hub.folder import told
from edgewise.edge.kv import KvSession
from edgewise.edge.sequence import SequenceCache
from edgewise.edge.slots import BATCH, Slot, Slots
from edgewise.errors import ModelError, UsageError

DEFAULT_CONTEXT = 4096
"""Ids, for a model that holds more, or does not say how many."""

PROBED = 6
"""Ids of a trial."""

_CLOSE = 0.05
"""How far two ways to the same logits may lie apart, of the largest."""


def default_threads() -> int:
    """Cores this process may use, less one.

    A decode waits for its slowest thread, so one busy core makes a step that uses all of them
    several times slower; one core is left to the rest of the machine.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 2) - 1)


class EngineModel(EdgeModel):
    """A model that is loaded from `path`, and whose sessions share `Slots`.

    An engine's `__init__` calls this one, loads the weights, sets `context`, `hidden_size`,
    `_tokenizer` and `_abilities`, and calls `_open_slots`.
    """

    engine: str
    """What to call the library."""

    _tokenizer: Any
    _abilities: EdgeAbilities
    _checkpoints: Checkpoints | None = None
    _slots: Slots[Any]

    def __init__(self, path: Path, name: str, options: EdgeOptions) -> None:
        """Raises `UsageError`."""
        if options.slots < 1 or (options.context is not None and options.context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self.path, self.name = path, name
        self._options = options

    def _context_for(self, trained: int | None) -> int:
        """The context of a session, ids; `trained` is what the model was made for, if known.

        Raises `UsageError` for more than that: memory would be taken for positions at which the
        model writes noise.
        """
        wanted = self._options.context
        if wanted is None:
            return min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        if trained is not None and wanted > trained:
            raise UsageError(
                f"{self.name!r} was made for contexts of at most {trained} tokens, not {wanted}",
                hint="lower the context",
                setting="ctx",
            )
        return wanted

    def _open_slots(
        self,
        new: Callable[[], SequenceCache],
        *,
        drop: Callable[[Any], None] | None = None,
        turn: int = BATCH,
    ) -> None:
        """Let sessions have sequences that `new` makes and `drop` takes back; see `Slots`."""
        self._slots = Slots(
            new,
            name=self.name,
            count=self._options.slots,
            keep_prefixes=self._options.keep_prefixes,
            batch=min(BATCH, self.context),
            turn=turn,
            drop=drop,
        )

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def abilities(self) -> EdgeAbilities:
        return self._abilities

    @property
    def checkpoints(self) -> Checkpoints | None:
        return self._checkpoints

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._slots.closed

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(self, Slot(self._slots, engine=self.engine), needs, top)

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        if self._slots.close():
            self._free()

    @abstractmethod
    def _free(self) -> None:
        """Free the weights, and what the sequences hold."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tried(NamedTuple):
    """`hidden_size` is 0 where the model shows no hidden state; `checkpoints` if it needs them."""

    hidden_size: int
    abilities: EdgeAbilities
    checkpoints: Checkpoints | None


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
        rows = new().run(ids, "all", hidden=True)
        cache = new()
        for token in ids[:-1]:
            cache.run([token], "none")
        cache.checkpoint()
        checkpoints = cache.checkpoints
        (last,) = cache.run(ids[-1:], "last")
        rewinds = cache.rewinds
        kept = cache.back(len(ids) - 1)
        (again,) = cache.run(ids[kept:], "last")
    except Exception as error:
        raise _refused(where, engine, told(error)) from error
    if len(rows[-1].logits) != size or not close(rows[-1].logits, last.logits):
        raise _refused(where, engine, "what it keeps of a text is not what it goes on with")
    came_back = close(rows[-1].logits, again.logits)
    if not kept or (may_stay and not came_back):
        rewinds = "no"
    elif not came_back:
        raise _refused(where, engine, "it does not go back to where it was")
    hidden = rows[-1].hidden
    abilities = EdgeAbilities(
        hidden=hidden is not None,
        rewinds=rewinds,
        batch_logits=len(rows) == len(ids),
        slots=slots,
    )
    return Tried(0 if hidden is None else len(hidden), abilities, checkpoints)


def close(left: Floats, right: Floats) -> bool:
    """Whether two rows of logits are the same but for rounding; not where they are no numbers."""
    return bool(np.abs(left - right).max() <= _CLOSE * np.abs(left).max())


def _refused(where: str, engine: str, why: str) -> ModelError:
    return ModelError(
        f"{where!r} does not decode step by step in {engine} ({why})",
        hint="name a GGUF of the model, or another model",
    )
