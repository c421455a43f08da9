"""What the built-in edge engines share: a model over slots, and the test run of a loaded one."""

import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec.structs import replace

from edgewise.edge.base import EdgeAbilities, EdgeModel, EdgeOptions, Floats, Needs
from edgewise.edge.hub.folder import digest_of, reason_of, weight_files
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.kv import BATCH, TURN, KvSession, Slots
from edgewise.edge.sequence import FAILURES, SequenceCache
from edgewise.errors import ModelError, UsageError

DEFAULT_CONTEXT = 4096
"""Ids, for a model that holds more, or does not say how many."""

PROBED = 6
"""Ids of a test run."""

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
    """A model that is loaded from `path`, and whose sessions share `Slots`."""

    engine: str
    """What to call the library."""

    tokenizer: Any
    slots: Slots

    def __init__(
        self,
        path: Path,
        options: EdgeOptions | None = None,
        *,
        name: str | None = None,
        **changes: Any,
    ) -> None:
        """Load `path`; `changes` are fields of `EdgeOptions`. Raises `ModelError`, `UsageError`."""
        options = replace(options or EdgeOptions(), **changes)
        if options.slots < 1 or (options.context is not None and options.context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self.path = path
        self.name = name or (path.stem if path.suffix == ".gguf" else path.resolve().name)
        self._options = options
        self._load(options)

    @abstractmethod
    def _load(self, options: EdgeOptions) -> None:
        """Load the weights; set `context` and `build`; call `_start`."""

    def _start(
        self,
        new: Callable[[], SequenceCache],
        size: int,
        *,
        trial: Callable[[], SequenceCache] | None = None,
        turn: int = BATCH,
    ) -> None:
        """Try the model with `new` caches, or those of `trial`, and let sessions have some.

        `size` is how many logits it has. For a model in a hub's folder.
        """
        self.tokenizer = HubTokenizer(self.path, size=size)
        self._try_out(trial or new, size, may_stay=trial is not None)
        self._open_slots(new, turn=turn)

    @abstractmethod
    def _free(self) -> None:
        """Free the weights, and what the sequences hold."""

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
        count = self._options.slots
        self.slots = Slots(
            new,
            name=self.name,
            count=count,
            keep_prefixes=self._options.keep_prefixes,
            batch=min(BATCH, self.context),
            turn=min(turn, TURN if count > 1 else BATCH),
            drop=drop,
            failures=FAILURES,
        )

    def _try_out(
        self, new: Callable[[], SequenceCache], size: int, *, may_stay: bool = False
    ) -> None:
        """Run a few of `size` ids through new caches, and set `hidden_size` and `abilities`.

        All at once, one by one, and again after a rollback. Raises `ModelError` for a model that
        does not go on where its cache ends, or does not roll back to where it was; `may_stay` where
        the caller has caches that never roll back.
        """
        ids = [7 * index % size for index in range(1, PROBED + 1)]
        try:
            rows = new().run(ids, "all", hidden=True)
            cache = new()
            for token in ids[:-1]:
                cache.run([token], "none")
            cache.checkpoint()
            (last,) = cache.run(ids[-1:], "last")
            rewinds, kept = cache.rewinds, cache.back(PROBED - 1)
            (again,) = cache.run(ids[kept:], "last")
        except Exception as error:
            raise self._refused(reason_of(error)) from error
        logits, hidden = rows[-1].logits, rows[-1].hidden
        if len(logits) != size or not _same(logits, last.logits):
            raise self._refused("what it keeps of a text is not what it goes on with")
        if not _same(logits, again.logits) and not may_stay:
            raise self._refused("it does not go back to where it was")
        self.hidden_size = 0 if hidden is None else len(hidden)
        self.abilities = EdgeAbilities(
            hidden=hidden is not None,
            rewinds=rewinds if kept and _same(logits, again.logits) else "no",
            batch_logits=len(rows) == PROBED,
            slots=self._options.slots,
        )

    def _refused(self, why: str) -> ModelError:
        return ModelError(
            f"{str(self.path)!r} does not decode step by step in {self.engine} ({why})",
            hint="name a GGUF of the model, or another model",
        )

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self.slots.closed

    def fingerprint(self) -> str:
        return digest_of([self.path / "config.json", *weight_files(self.path)])

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(self, self.slots, needs, top)

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        if self.slots.close():
            self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _same(left: Floats, right: Floats) -> bool:
    """Whether two rows of logits are the same but for rounding; not where they are no numbers."""
    return bool(np.abs(left - right).max() <= _CLOSE * np.abs(left).max())
