"""A sequence of a llama.cpp context as the KV cache of a session."""

from collections.abc import Sequence

from edgewise.edge.kv import KvRow, Outputs
from edgewise.edge.llamacpp_context import LlamaBatch, LlamaContext
from edgewise.edge.llamacpp_marks import LlamaMarks, marks_of
from edgewise.edge.slots import Slot, Slots


class LlamaSequence:
    """What one sequence holds, cut or brought back to marks. Implements `SequenceMemory`."""

    def __init__(self, context: LlamaContext, number: int, marks: LlamaMarks | None) -> None:
        self.context, self.number, self.marks = context, number, marks

    def keeps(self, position: int) -> int:
        return self.marks.reach(position) if self.marks else position

    def back(self, position: int) -> int:
        """Drop ids from `position` on, or from earlier; returns how many are left."""
        if self.marks:
            return self.marks.back(position)
        return self.context.forget(self.number, position)


class LlamaSlots(Slots[LlamaSequence]):
    """The sequences of a context, which is used by one session at a time."""

    def __init__(
        self, context: LlamaContext, *, name: str, batch: int, count: int, keep_prefixes: bool
    ) -> None:
        self.context = context
        self._marks, self._numbers = marks_of(context, count), list(reversed(range(count)))
        super().__init__(
            self._next, name=name, count=count, keep_prefixes=keep_prefixes, batch=batch
        )

    def _next(self) -> LlamaSequence:
        number = self._numbers.pop()
        return LlamaSequence(self.context, number, self._marks.get(number))

    def _drop(self, place: LlamaSequence) -> None:
        place.back(0)
        self._numbers.append(place.number)

    def close(self) -> bool:
        """Free the context; False where that was done before."""
        if not super().close():
            return False
        # Nobody runs any more. Views into the context are stale from here on.
        self.context.decodes += 1
        self.context.close()
        return True


class LlamaSlot(Slot[LlamaSequence]):
    """Implements `KvCache`."""

    def __init__(self, slots: LlamaSlots) -> None:
        super().__init__(slots)
        self._context = slots.context
        self._marks: LlamaMarks | None = None
        self._ids = LlamaBatch()

    @property
    def decodes(self) -> int:
        return self._context.decodes

    @property
    def sequence(self) -> int:
        """The context's."""
        assert self._place is not None
        return self._place.number

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        held = super().adopt(ids)
        assert self._place is not None
        self._marks = self._place.marks
        self._ids.belong_to(self._place.number)
        return held

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        every = outputs == "all"
        if self._marks:
            self._marks.passing(start)
        self._ids.clear()
        last = self._ids.put(ids, start, every=every, last=outputs == "last")
        self._context.decode(self._ids, hidden=hidden)
        if outputs == "none":
            return ()
        first = 0 if every else last
        return [self._context.row(index, hidden=hidden) for index in range(first, last + 1)]

    def forget(self, position: int) -> int:
        return 0 if self._place is None else self._place.back(position)

    def mark(self, position: int, *, lasting: bool) -> None:
        if self._marks:
            self._marks.asked(position, lasting=lasting)

    def release(self, held: Sequence[int]) -> None:
        self._ids.close()
        super().release(held)
