"""`EngineModel`: the base class of edge models that are loaded from a path into this process."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from edgewise.edge.base import EdgeModel, EdgeOptions, Needs
from edgewise.edge.files import explained
from edgewise.edge.kv import BATCH, TURN, KvSession, Slots
from edgewise.edge.sequence import SequenceCache
from edgewise.errors import UsageError

DEFAULT_CONTEXT = 4096
"""Context in ids, unless an option says otherwise or the model was trained for less."""


class EngineModel(EdgeModel):
    """An `EdgeModel` loaded from `path`; `slots` gives each session one of its KV caches."""

    engine: str
    """Name of the engine's library, for error messages."""

    kind_of_slots: ClassVar[type[Slots]] = Slots
    """Class of `slots`: it decides whether waiting sessions share a forward pass."""

    tokenizer: Any
    slots: Slots

    def __init__(
        self, address: str | Path, options: EdgeOptions | None = None, **changes: Any
    ) -> None:
        """Load the model at `address`; keyword arguments override fields of `options`.

        Raises `UsageError` for options that cannot be honoured, `AddressError` or `ModelError` for
        a model that is not found or cannot be loaded.
        """
        self._options = options = replace(options or EdgeOptions(), **changes)
        if options.slots < 1 or (options.context is not None and options.context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        # First: without the library nothing is to be downloaded.
        self._import()
        self.path, self.name = self._located(str(address))
        with explained(self.path, self.engine):
            self._load(options)

    def _import(self) -> None:
        """Import the engine's library. Raises `UsageError` without it."""

    @abstractmethod
    def _located(self, address: str) -> tuple[Path, str]:
        """Return the model's path and display name; may download. Raises `AddressError`."""

    @abstractmethod
    def _load(self, options: EdgeOptions) -> None:
        """Load the weights, set the attributes of `EdgeModel`, and call `_open_slots`."""

    @abstractmethod
    def _free(self) -> None:
        """Free the weights and the memory of all caches."""

    def _context_for(self, said: object) -> int:
        """Return the context of a session in ids. Raises `UsageError` if the options ask for more.

        `said` is the longest one by the model's file; what is no positive int is ignored.
        """
        trained = said if isinstance(said, int) and said > 0 else None
        wanted = self._options.context
        if wanted is None:
            return min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        # Memory would be taken for positions at which the model writes noise.
        if trained is not None and wanted > trained:
            raise UsageError(
                f"{self.name!r} was made for contexts of at most {trained} tokens, not {wanted}",
                hint="lower the context",
                setting="ctx",
            )
        return wanted

    def _open_slots(self, caches: Sequence[SequenceCache], *, turn: int = BATCH) -> None:
        self.slots = self.kind_of_slots(
            caches,
            name=self.name,
            keep_prefixes=self._options.keep_prefixes,
            batch=min(BATCH, self.context),
            # Alone, a session keeps nobody waiting: its prompt runs in whole batches.
            turn=min(turn, TURN if len(caches) > 1 else BATCH),
        )

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(self, self.slots, needs, top)

    def close(self) -> None:
        """Wait for the pass under way, then free all memory. Sessions then raise `UsageError`."""
        # Once: llama.cpp's memory must not be freed twice.
        if self.slots.close():
            self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
