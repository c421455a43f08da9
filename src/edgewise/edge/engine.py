"""Code shared by the built-in edge engines: a model over slots, and the test run after loading."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeAbilities, EdgeModel, EdgeOptions, Needs
from edgewise.edge.hub.folder import digest_of, explained, reason_of, weight_files
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.kv import BATCH, TURN, KvSession, Slots
from edgewise.edge.sequence import SequenceCache, alike
from edgewise.errors import ModelError, UsageError

DEFAULT_CONTEXT = 4096
"""Ids, for a model that holds more, or does not say how many."""

PROBED = 6
"""Ids of a test run."""


def imported(engine: str, *names: str) -> list[Any]:
    """The modules that an engine needs. Raises `UsageError` without the extra of its name."""
    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise UsageError(
            f"The edge engine {engine} needs {error.name or names[0]} ({reason_of(error)})",
            hint=f"pip install 'edgewise[{engine}]'",
        ) from error


class EngineModel(EdgeModel):
    """A model that is loaded from `path`, and whose sessions share `Slots`."""

    engine: str
    """The library."""

    reads: tuple[str, ...] = ()
    """Ends of the names of the files that are downloaded, for a model that is a folder."""

    kind_of_slots: ClassVar[type[Slots]] = Slots
    """Whether each session runs alone, or those that wait share a pass."""

    tokenizer: Any
    slots: Slots

    def __init__(
        self, address: str | Path, options: EdgeOptions | None = None, **changes: Any
    ) -> None:
        """Load the model at `address`, downloaded if need be; `changes` are fields of `options`.

        Raises `AddressError`, `ModelError`, `UsageError`.
        """
        self._options = options = replace(options or EdgeOptions(), **changes)
        if options.slots < 1 or (options.context is not None and options.context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self._import()
        self.path, self.name = self._located(str(address))
        with explained(self.path, self.engine):
            self._load(options)

    def _import(self) -> None:
        """Import the library, before anything is downloaded. Raises `UsageError`."""

    def _located(self, address: str) -> tuple[Path, str]:
        """Path and display name of the model."""
        return resolve_folder(address, self.reads)

    @abstractmethod
    def _load(self, options: EdgeOptions) -> None:
        """Load the weights; set `context` and `build`; call `_start`."""

    def _start(
        self,
        new: Callable[[], SequenceCache],
        size: int,
        *,
        small: Callable[[], SequenceCache] | None = None,
        turn: int = BATCH,
    ) -> None:
        """Test the model with `new` caches, or `small` ones, and give sessions `new` ones.

        `size` is how many logits it has. For a model in a hub's folder.
        """
        self.tokenizer = HubTokenizer(self.path, size=size)
        self._try_out(small or new, size, may_stay=small is not None)
        self._open_slots([new() for _ in range(self._options.slots)], turn=turn)

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
        """Give sessions these caches."""
        self.slots = self.kind_of_slots(
            caches,
            name=self.name,
            keep_prefixes=self._options.keep_prefixes,
            batch=min(BATCH, self.context),
            turn=min(turn, TURN if len(caches) > 1 else BATCH),
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
        if len(logits) != size or not alike(logits, last.logits):
            raise self._refused("its cache does not give the same logits")
        if not alike(logits, again.logits) and not may_stay:
            raise self._refused("it does not rewind to the same logits")
        self.hidden_size = 0 if hidden is None else len(hidden)
        self.abilities = EdgeAbilities(
            hidden=hidden is not None,
            rewinds=rewinds if kept and alike(logits, again.logits) else "no",
            batch_logits=len(rows) == PROBED,
            slots=self._options.slots,
        )

    def _refused(self, why: str) -> ModelError:
        return ModelError(
            f"{str(self.path)!r} does not decode step by step in {self.engine} ({why})",
            hint="name a GGUF of the model, or another model",
        )

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
