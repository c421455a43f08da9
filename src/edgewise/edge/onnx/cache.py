"""A generator of onnxruntime-genai as one sequence's cache."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgewise.edge.base import Rewinds
from edgewise.edge.kv import KvRow, Outputs
from edgewise.edge.sequence import SequenceCache, rows_of

_LOGITS_BYTES = 64 << 20


def longest_turn(vocabulary: int) -> int:
    """Most prompt ids of a run: a graph computes every id's logits, whether wanted or not."""
    return max(_LOGITS_BYTES // (4 * vocabulary), 16)


class OnnxCache(SequenceCache):
    """What one sequence holds; it goes back by `rewind_to`."""

    def __init__(
        self, new: Callable[[], Any], outputs: tuple[str, str], *, rewinds: Rewinds = "anywhere"
    ) -> None:
        """`new` makes a generator; `outputs` are the names of logits and hidden states."""
        self._new, self.rewinds = new, rewinds
        self._logits, self._hidden = outputs
        super().__init__()

    def _begin(self) -> None:
        self._generator = self._new()

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        self._generator.append_tokens(np.asarray(ids, np.int32))
        if outputs == "none":
            return ()
        # `get_logits` would skip ids at the end that equal the padding id.
        first = -len(ids) if outputs == "all" else -1
        states = self._states(first) if hidden else None
        return rows_of(self._read(self._logits, first), states)

    def _states(self, first: int) -> Any | None:
        try:
            return self._read(self._hidden, first)
        except RuntimeError:
            return None  # the graph has no such output

    def _read(self, name: str, first: int) -> Any:
        """An output of the last run, float32[ids, size], a copy."""
        return np.asarray(self._generator.get_output(name)[0], np.float32)[first:]

    def _back(self, count: int, state: Any | None) -> bool:
        self._generator.rewind_to(self.length - count)  # raises where a window has moved on
        return True
