"""An engine's sequence cache as the KV cache of a session."""

from collections.abc import Sequence

from edgewise.edge.hub_config import told
from edgewise.edge.kv import KvRow, Outputs
from edgewise.edge.sequence_cache import FAILURES, SequenceCache
from edgewise.edge.slots import Slot, Slots
from edgewise.errors import ModelError


class SequenceSlot(Slot[SequenceCache]):
    """Implements `KvCache`."""

    def __init__(self, slots: Slots[SequenceCache], *, engine: str, name: str) -> None:
        """`engine` is what to call the library, `name` the model."""
        super().__init__(slots)
        self._engine, self._name = engine, name
        self._decodes = 0

    @property
    def decodes(self) -> int:
        return self._decodes + self.closed

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        assert self._place is not None
        assert self._place.length == start
        self._decodes += 1
        try:
            rows = self._place.run(ids, outputs, hidden=hidden)
        except FAILURES as error:
            raise ModelError(
                f"{self._engine} could not run {len(ids)} tokens of {self._name!r} ({told(error)})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            ) from error
        if rows is None:
            return ()
        if rows.hidden is None:
            return [KvRow(row) for row in rows.logits]
        return [KvRow(*row) for row in zip(rows.logits, rows.hidden, strict=True)]

    def mark(self, position: int, *, lasting: bool) -> None:
        """Keep the state at `position`, where the cache ends; any mark may last."""
        if self._place is not None and self._place.length == position:
            self._place.mark()

    def forget(self, position: int) -> int:
        return 0 if self._place is None else self._place.back(position)
