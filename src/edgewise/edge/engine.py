"""A model that is loaded from a path, and whose sessions share `Slots`: what engines have alike."""

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
"""Ids, for a model that holds more, or does not say how many."""


class EngineModel(EdgeModel):
    """A model that is loaded from `path`, and whose sessions share `Slots`."""

    engine: str
    """The library."""

    kind_of_slots: ClassVar[type[Slots]] = Slots
    """Whether each session runs alone, or those that wait share a pass."""

    tokenizer: Any
    slots: Slots

    def __init__(
        self, address: str | Path, options: EdgeOptions | None = None, **changes: Any
    ) -> None:
        """Load the model at `address`; `changes` are fields of `options`. Raises `UsageError`."""
        self._options = options = replace(options or EdgeOptions(), **changes)
        if options.slots < 1 or (options.context is not None and options.context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self._import()
        self.path, self.name = self._located(str(address))
        with explained(self.path, self.engine):
            self._load(options)

    def _import(self) -> None:
        """Import the library, before anything is downloaded. Raises `UsageError`."""

    @abstractmethod
    def _located(self, address: str) -> tuple[Path, str]:
        """Path and display name of the model, downloaded if need be. Raises `AddressError`."""

    @abstractmethod
    def _load(self, options: EdgeOptions) -> None:
        """Load the weights; set what `EdgeModel` has; call `_open_slots`."""

    @abstractmethod
    def _free(self) -> None:
        """Free the weights, and what the sequences hold."""

    def _context_for(self, said: object) -> int:
        """The context of a session, ids; `said` is for how many the model was made, if it says so.

        Raises `UsageError` for more than that: memory would be taken for positions at which the
        model writes noise.
        """
        trained = said if isinstance(said, int) and said > 0 else None
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

    def _open_slots(self, caches: Sequence[SequenceCache], *, turn: int = BATCH) -> None:
        self.slots = self.kind_of_slots(
            caches,
            name=self.name,
            keep_prefixes=self._options.keep_prefixes,
            batch=min(BATCH, self.context),
            turn=min(turn, TURN if len(caches) > 1 else BATCH),
        )

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
