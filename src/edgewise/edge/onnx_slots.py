"""Generators of onnxruntime-genai as KV caches of sessions, which take turns."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgewise.edge.fair_lock import FairLock
from edgewise.edge.kv import KvCache, KvRow, Outputs, common_prefix
from edgewise.errors import ModelError, UsageError

BATCH = 512
"""Most ids of one run."""

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError)
"""What the library raises, by the kind of its C++ exceptions; for words that are no UTF-8, too."""

_TURN = 64
_LOGITS_BYTES = 64 << 20
"""Of a prompt's run: a graph computes the logits of every id, whether or not they are wanted."""


class OnnxSlots:
    """Who has which generator of a model. One session runs at a time (`lock`)."""

    def __init__(
        self,
        new: Callable[[], Any],
        *,
        name: str,
        vocabulary: int,
        room: int,
        count: int,
        keep_prefixes: bool,
        outputs: tuple[str, str],
        rewinds: bool,
    ) -> None:
        """`new` makes a generator with room for `room` ids; `outputs` are logits and hidden."""
        self.lock = FairLock()
        self.closed = False
        self.new = new
        self.outputs, self.rewinds = outputs, rewinds
        self.batch = min(BATCH, room)
        fitting = max(_LOGITS_BYTES // (4 * vocabulary), 16)
        self.turn = min(_TURN if count > 1 else BATCH, fitting, room)
        self._name, self._keep, self._count = name, keep_prefixes, count
        self._reserved = 0
        # What each free generator holds, longest unused first.
        self._free: list[tuple[Any, list[int]]] = []

    def reserve(self) -> "OnnxSlot":
        """A slot for a session, whose generator is chosen once its ids are known."""
        with self.lock:
            if self.closed:
                raise UsageError(f"{self._name!r} is closed", hint="load it again")
            if self._reserved == self._count:
                raise UsageError(
                    f"All slots of {self._name!r} are in use",
                    hint="load it with more slots or close a session",
                    setting="slots",
                )
            self._reserved += 1
        return OnnxSlot(self)

    def take(self, ids: Sequence[int]) -> tuple[Any, list[int]]:
        """The free generator that holds most of what `ids` begin with, and what it holds."""
        with self.lock:
            best = max(self._free, key=lambda free: common_prefix(free[1], ids), default=None)
            made = self._reserved - 1 + len(self._free)
            if best is None or (made < self._count and not common_prefix(best[1], ids)):
                return self.new(), []
            self._free.remove(best)
            return best

    def give_back(self, generator: Any, held: Sequence[int]) -> None:
        """The session is over; its generator, if it took one, holds `held`."""
        with self.lock:
            self._reserved -= 1
            if generator is None or self.closed:
                return
            if self._keep:
                self._free.append((generator, list(held)))

    def close(self) -> bool:
        """Free what is free; False where that was done before."""
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            self._free.clear()
            return True


class OnnxSlot(KvCache):
    """A session's generator. Implements `KvCache`."""

    def __init__(self, slots: OnnxSlots) -> None:
        self.lock = slots.lock
        self.batch, self.turn = slots.batch, slots.turn
        self._slots = slots
        self._logits, self._hidden = slots.outputs
        self._decodes = 0
        self._generator: Any = None
        self._sound = True

    @property
    def decodes(self) -> int:
        return self._decodes

    @property
    def closed(self) -> bool:
        return self._slots.closed

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        self._generator, held = self._slots.take(ids)
        return held

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        self._decodes += 1
        self._sound = False
        try:
            self._generator.append_tokens(np.asarray(ids, np.int32))
            rows = () if outputs == "none" else self._rows(len(ids), outputs, hidden=hidden)
        except FAILURES as error:
            raise ModelError(
                f"onnxruntime-genai could not decode {len(ids)} tokens ({first_line(error)})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            ) from error
        self._sound = True
        return rows

    def _rows(self, count: int, outputs: Outputs, *, hidden: bool) -> list[KvRow]:
        # `get_logits` would skip ids at the end that equal the padding id.
        first = -count if outputs == "all" else -1
        logits = read_rows(self._generator, self._logits)[first:]
        if not hidden:
            return [KvRow(row) for row in logits]
        states = read_rows(self._generator, self._hidden)[first:]
        return [KvRow(row, state) for row, state in zip(logits, states, strict=True)]

    def forget(self, position: int) -> int:
        if self._generator is None:
            return 0
        if self._sound and self._slots.rewinds:
            try:
                self._generator.rewind_to(position)
                return position
            except FAILURES:
                pass  # a window has moved on: it is read again
        self._generator = self._slots.new()
        self._sound = True
        return 0

    def release(self, held: Sequence[int]) -> None:
        generator, self._generator = self._generator, None
        self._slots.give_back(generator, held)


def read_rows(generator: Any, name: str) -> Any:
    """An output of the last run for each of its ids: float32[ids, size], a copy."""
    return np.asarray(generator.get_output(name)[0], np.float32)


def first_line(error: BaseException) -> str:
    """What the library says of its failure, in short."""
    told = str(error).strip().partition("\n")[0][:300].rstrip(".")
    return told or type(error).__name__
