"""The bookkeeping of a session, over a KV cache that checks how it is used."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.edge.base import EdgeAbilities, Needs, Rewinds
from edgewise.edge.kv import KvSession, Slots
from edgewise.edge.sequence import KvRow, Outputs, SequenceCache
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import ContextOverflow, ModelError, UsageError
from edgewise.testing.scripted_edge import ScriptedEdge, noise

CONTEXT = 16
SCRIPT = noise()
ANYWHERE = EdgeAbilities()


class Cells(SequenceCache):
    """Holds ids and hands out one buffer of logits again and again, as an engine does."""

    spacing = CONTEXT

    def __init__(
        self, *, rewinds: Rewinds = "anywhere", batch: int = CONTEXT, turn: int = CONTEXT
    ) -> None:
        self.rewinds: Rewinds = rewinds
        self.ran: list[tuple[int, Outputs]] = []
        self.checkpoints: list[tuple[int, bool]] = []
        self.fault: Callable[[int], BaseException | None] = lambda run: None
        self.hidden_rows = 0
        self.cells: list[int] = []
        self._memory = np.zeros((CONTEXT, 258), np.float32)
        self.slots = Slots([self], name="cells", batch=batch, turn=turn, keep_prefixes=True)
        super().__init__()

    @property
    def computed(self) -> int:
        return sum(count for count, _ in self.ran)

    def _begin(self) -> None:
        self.cells.clear()

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        assert 0 < len(ids) <= self.slots.batch
        self.ran.append((len(ids), outputs))
        if error := self.fault(len(self.ran)):
            self.cells += ids[: len(ids) // 2]
            raise error
        self.cells += ids
        count = {"none": 0, "last": 1, "all": len(ids)}[outputs]
        self._memory[:] = np.nan
        self.hidden_rows += count * hidden
        rows: list[KvRow] = []
        for row, end in enumerate(range(len(self.cells) - count + 1, len(self.cells) + 1)):
            self._memory[row] = SCRIPT(self.cells[:end])
            rows.append(KvRow(self._memory[row], np.full(4, end, np.float32) if hidden else None))
        return rows

    def _copy(self) -> None:
        pass

    def _back(self, count: int, state: Any | None) -> bool:
        del self.cells[-count:]
        return True

    def checkpoint(self, *, lasting: bool = False) -> None:
        self.checkpoints.append((self.length, lasting))
        super().checkpoint(lasting=lasting)


def over(
    cells: Cells, *, needs: Needs = Needs.LOGITS, abilities: EdgeAbilities = ANYWHERE
) -> KvSession:
    edge = ScriptedEdge(SCRIPT, context=CONTEXT, abilities=abilities)
    return KvSession(edge, cells.slots, needs, 0)


few_ids = st.lists(st.integers(0, 1), max_size=7)
operations = st.lists(
    st.tuples(st.sampled_from(["open", "extend", "steps"]), few_ids)
    | st.tuples(st.just("step"), st.none())
    | st.tuples(st.just("rewind"), st.integers(0, CONTEXT)),
    max_size=30,
)


class Ledger:
    """What a session should hold, and how many ids an engine that forgets nothing has to run."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.computed = self.runs = 0
        self.at_hand = False

    def open(self, ids: list[int]) -> int:
        shared = common_prefix(self.ids[: self.computed], ids)
        self.go_back(shared)
        self.ids = list(ids)
        return shared

    def go_back(self, position: int) -> None:
        if position < self.computed:
            self.at_hand = False
        self.computed = min(self.computed, position)
        del self.ids[position:]

    def compute(self) -> None:
        if not (self.at_hand and self.computed == len(self.ids)):
            self.runs += max(1, len(self.ids) - self.computed)
        self.computed, self.at_hand = len(self.ids), True


def perform(session: KvSession, ledger: Ledger, name: str, what: Any) -> None:
    """The same on both; what the session says is checked against a run from scratch."""
    if name == "open":
        held = ledger.open(what)
        assert session.open(what) <= held
    elif name == "extend":
        session.extend(what)
        ledger.ids += what
    elif name == "rewind":
        position = min(what, len(ledger.ids))
        session.rewind(position)
        ledger.go_back(position)
    elif name == "steps":
        if what and ledger.computed < len(ledger.ids):
            ledger.compute()
        start = len(ledger.ids)
        steps = session.steps(what)
        ledger.ids += what
        if what:
            ledger.compute()
        assert [step.position for step in steps] == [start + i + 1 for i in range(len(what))]
        for step in steps:
            assert np.array_equal(step.logits, SCRIPT(ledger.ids[: step.position]))
    elif ledger.ids:
        step = session.step()
        ledger.compute()
        assert step.position == len(ledger.ids)
        assert np.array_equal(step.logits, SCRIPT(ledger.ids))


class TestAnyHistory:
    @given(
        operations=operations,
        rewinds=st.sampled_from(["anywhere", "checkpoints", "no"]),
        batched=st.booleans(),
        turn=st.integers(1, 9),
    )
    def test_equals_a_run_from_scratch_and_computes_nothing_twice(
        self, operations: list[tuple[str, Any]], rewinds: Rewinds, batched: bool, turn: int
    ) -> None:
        cells, ledger = Cells(rewinds=rewinds, turn=turn), Ledger()
        session = over(cells, abilities=EdgeAbilities(batch_logits=batched, rewinds=rewinds))
        for name, what in operations:
            before = 0 if name == "open" else len(ledger.ids)
            if name not in ("step", "rewind") and before + len(what) > CONTEXT:
                with pytest.raises(ContextOverflow, match=f"context of {CONTEXT}"):
                    getattr(session, name)(what)
            else:
                perform(session, ledger, name, what)
            assert session.position == len(ledger.ids)
        if rewinds == "anywhere":
            assert cells.computed == ledger.runs
        else:
            assert cells.computed >= ledger.runs

    @given(
        faults=st.lists(st.booleans(), max_size=12),
        text=st.lists(st.integers(0, 1), min_size=1, max_size=CONTEXT),
        error=st.sampled_from([ModelError("no memory."), KeyboardInterrupt()]),
    )
    def test_a_run_that_fails_is_as_if_it_had_not_begun(
        self, faults: list[bool], text: list[int], error: BaseException
    ) -> None:
        cells = Cells(turn=4)
        cells.fault = lambda run: error if run <= len(faults) and faults[run - 1] else None
        session = over(cells)
        session.open(text)
        for _ in range(len(faults) + 1):
            with suppress(type(error)):
                assert np.array_equal(session.step().logits, SCRIPT(text))
        assert cells.cells == cells.ids == text


class TestRuns:
    def test_a_prompt_is_read_in_turns_and_only_its_end_has_outputs(self) -> None:
        cells = Cells(turn=4)
        session = over(cells, needs=Needs.HIDDEN)
        session.open([1] * 11)
        assert session.step().hidden[0] == 11
        assert cells.ran == [(4, "none"), (4, "none"), (2, "none"), (1, "last")]
        session.steps([1, 2, 3])
        assert cells.hidden_rows == 4

    def test_a_batch_has_a_size(self) -> None:
        session = over(Cells(batch=4, turn=4))
        session.open([1])
        with pytest.raises(UsageError, match=r"4.*5"):
            session.steps([1] * 5)
        assert session.position == 1
        assert len(session.steps([1] * 4)) == 4

    def test_without_batches_steps_are_made_one_by_one_and_outlive_each_other(self) -> None:
        cells = Cells(batch=4, turn=4)
        session = over(cells, needs=Needs.NOTHING, abilities=EdgeAbilities(batch_logits=False))
        session.open([1])
        steps = session.steps([1, 0, 1, 1, 0, 0])
        assert cells.ran == [(1, "last")] * 7
        for count, row in enumerate([step.logits for step in steps], 2):
            assert np.array_equal(row, SCRIPT([1, 1, 0, 1, 1, 0, 0][:count]))

    def test_no_checkpoint_where_the_session_went_back_before(self) -> None:
        """Where they are made `test_checkpoints` shows, over an engine that needs them."""
        cells = Cells(rewinds="checkpoints")
        session = over(cells, abilities=EdgeAbilities(rewinds="checkpoints"))
        session.open([1, 0, 1, 1])
        session.step()
        session.checkpoint(4)
        session.rewind(1)
        session.extend([0, 0, 0, 1, 1])
        session.step()
        assert (4, False) not in cells.checkpoints


def test_what_cannot_be_is_refused() -> None:
    session = over(Cells())
    for bad in ([-1], [258], [0, 258, 0]):
        for call in (session.open, session.extend, session.steps):
            with pytest.raises(UsageError, match="257"):
                call(bad)
    assert session.position == 0
    session.open([1])
    session.close()
    calls: list[Callable[[], object]] = [
        session.step,
        lambda: session.steps([1]),
        lambda: session.open([1]),
        lambda: session.extend([1]),
        lambda: session.rewind(0),
    ]
    for ask in calls:
        with pytest.raises(UsageError, match="closed"):
            ask()
    cells = Cells()
    with pytest.raises(UsageError) as caught:
        over(cells, needs=Needs.HIDDEN, abilities=EdgeAbilities(hidden=False))
    assert caught.value.setting == "router"
    assert cells.slots.sessions == 0
