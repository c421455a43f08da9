"""Sessions over any engine's KV cache: which ids are computed, which wait, what a rollback drops.

An engine writes two calls (`KvCache`), run ids and forget ids; the bookkeeping is here, once.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import numpy as np

from edgewise.edge.base import EdgeModel, Floats, Needs, Written
from edgewise.edge.step import LogitsStep
from edgewise.errors import ContextOverflow, UsageError

FEW = 8
"""Most ids of a prompt that one run computes with outputs, where an engine uses checkpoints."""

Outputs = Literal["none", "last", "all"]
"""Of which ids of a run the logits are wanted."""


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """How many ids both begin with."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


class KvRow(NamedTuple):
    """Views into the engine's memory, valid until its next decode.

    `logits` float32[vocabulary]; `hidden` float32[d], None if not asked for.
    """

    logits: Floats
    hidden: Floats | None = None


class KvCache(Protocol):
    """What an engine does for one session: the part that an engine writes itself."""

    lock: AbstractContextManager[object]
    """Held around `run` and `forget`, and until the rows of a run were read."""

    batch: int
    """Most ids of one run."""

    turn: int
    """Most ids of a prompt in one run, so that another session's turn comes."""

    @property
    def decodes(self) -> int:
        """Grows with every decode that makes earlier rows invalid, another session's as well."""
        ...

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        """Compute `ids`, the first at position `start`: a row for the last, for all, or none.

        Raises `ModelError`; `forget` follows.
        """
        ...

    def forget(self, position: int) -> int:
        """Drop ids from `position` on, or from earlier where the engine cannot do better.

        Returns how many are left.
        """
        ...

    @property
    def closed(self) -> bool:
        """Whether the model is closed, and the cache with it."""
        return False

    def checkpoint(self, position: int, *, lasting: bool) -> None:
        """Keep the state at `position`, where the cache ends; `lasting` for one in the prompt.

        Called with `lock` held, before a run, and only if the model rolls back to checkpoints.
        """

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        """Called once, before the first run: begin with what is kept of a sequence like `ids`.

        Returns the ids that the cache then holds.
        """
        return ()

    def release(self, held: Sequence[int]) -> None:
        """The session is over; the cache holds `held`."""


class KvSession:
    """Implements `EdgeSession` over a `KvCache`."""

    def __init__(self, model: EdgeModel, cache: KvCache, needs: Needs, top: int) -> None:
        """The cache is the session's from here on, and released if there is to be none."""
        if Needs.HIDDEN in needs and not model.abilities.hidden:
            cache.release(())
            raise UsageError(
                f"The engine of {model.name!r} hands out no hidden states",
                hint="choose a router that reads none, such as entropy",
                setting="router",
            )
        self._cache = cache
        self._name, self._size, self._context = model.name, model.tokenizer.size, model.context
        self._batched = model.abilities.batch_logits
        self._checkpointed = model.abilities.rewinds == "checkpoints"
        self._few = min(FEW, cache.batch) if self._checkpointed else 1
        self._needs, self._top = needs, top
        self._hidden = Needs.HIDDEN in needs
        self._tokenizer = model.tokenizer if Needs.TEXT in needs else None
        self._ids: list[int] = []
        self._prompt = self._computed = 0
        self._wanted: set[int] = set()
        self._last: LogitsStep | None = None
        self._buffer: Floats = np.empty(self._size, np.float32)
        self._opened = self._closed = False

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        self._check(0, ids)
        if not self._opened:
            self._opened = True
            self._ids = list(self._cache.adopt(ids))
            self._computed = len(self._ids)
        self.rewind(common_prefix(self._ids[: self._computed], ids))
        self._ids = list(ids)
        self._prompt = len(ids)
        if self._checkpointed and ids:
            if self._computed == len(ids) and not self._at_hand():
                # As `step` will: what is reported as kept is not read again.
                self._forget(len(ids) - 1)
            self.checkpoint(len(ids) - 1)
        return self._computed

    def extend(self, ids: Sequence[int]) -> None:
        if not self._opened:
            self.open(ids)
            return
        self._check(len(self._ids), ids)
        self._ids.extend(ids)

    def step(self) -> LogitsStep:
        wanted = len(self._ids)
        if not wanted:
            self._check_open()
            raise UsageError(
                "A session has no next token before it has ids", hint="open it with a prompt"
            )
        if self._computed == wanted:
            self._check_open()
            if self._last and self._at_hand():
                return self._last
            self._forget(wanted - 1)
        while (end := self._next_end(wanted)) < wanted:
            self._run(end, "none", self._needs)
        (self._last,) = self._run(wanted, "last", self._needs)
        return self._last

    def steps(self, ids: Sequence[int]) -> list[LogitsStep]:
        if not ids:
            return []
        start = len(self._ids)
        self._check(start, ids)
        if self._batched and len(ids) > self._cache.batch:
            raise UsageError(f"At most {self._cache.batch} steps fit in one batch, not {len(ids)}.")
        if self._computed < start:
            self.step()
        self.extend(ids)
        if self._batched:
            made = self._run(len(self._ids), "all", self._needs)
        else:
            # Every step but the last is stale when the next one is made.
            kept = self._needs | Needs.LOGITS
            made = [self._run(start + i + 1, "last", kept)[0] for i in range(len(ids))]
        self._last = made[-1]
        return made

    def rewind(self, position: int) -> None:
        self._check_open()
        if not 0 <= position <= len(self._ids):
            raise ValueError(f"cannot rewind to {position}: the session holds {len(self._ids)} ids")
        del self._ids[position:]
        self._wanted = {at for at in self._wanted if at <= position}
        if position < self._computed:
            self._forget(position)

    def checkpoint(self, position: int) -> None:
        if self._checkpointed and position >= max(1, self._computed):
            self._wanted.add(position)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._cache.release(self._ids[: self._computed])

    def _next_end(self, wanted: int) -> int:
        """Where the next run ends: a prompt but for its last id is read without outputs."""
        stops = self._wanted and [at for at in self._wanted if self._computed < at < wanted]
        if wanted - self._computed <= self._few and not stops:
            return wanted
        return min(wanted - 1, self._computed + self._cache.turn, *stops)

    def _at_hand(self) -> bool:
        last = self._last
        return last is not None and last.position == len(self._ids) and last.fresh

    def _check_open(self) -> None:
        if self._closed or self._cache.closed:
            raise UsageError("The session or its model is closed", hint="open a new one")

    def _check(self, before: int, ids: Sequence[int]) -> None:
        self._check_open()
        if not all(0 <= token < self._size for token in ids):
            raise UsageError(f"{self._name!r} has ids from 0 to {self._size - 1} only.")
        if before + len(ids) > self._context:
            raise ContextOverflow(
                f"{before + len(ids)} tokens do not fit in the context of {self._context}",
                hint="shorten the prompt or raise the context",
                setting="ctx",
            )

    def _forget(self, position: int) -> None:
        with self._cache.lock:
            self._check_open()
            self._computed = self._cache.forget(position)

    def _run(self, end: int, outputs: Outputs, needs: Needs) -> list[LogitsStep]:
        start, cache = self._computed, self._cache
        hidden = self._hidden and outputs != "none"
        with cache.lock:
            self._check_open()
            try:
                if start in self._wanted:
                    cache.checkpoint(start, lasting=start < self._prompt)
                rows = cache.run(self._ids[start:end], start, outputs, hidden=hidden)
            except BaseException:
                # An interrupted run may have computed some of them.
                self._computed = cache.forget(start)
                raise
            self._computed = end
            if self._wanted:
                self._wanted = {at for at in self._wanted if at >= end}
            decode = cache.decodes
            return [
                LogitsStep(
                    position,
                    row.logits,
                    row.hidden,
                    is_fresh=lambda: cache.decodes == decode,
                    buffer=self._buffer,
                    needs=needs,
                    top=self._top,
                    written=self._written(position),
                )
                for position, row in enumerate(rows, end - len(rows) + 1)
            ]

    def _written(self, position: int) -> Written | None:
        if self._tokenizer is None:
            return None
        return Written(self._ids[:position], self._prompt, self._tokenizer)
