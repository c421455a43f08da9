"""The bookkeeping of a session, over a KV cache that checks how it is used."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.edge.base import EdgeAbilities, Needs
from edgewise.edge.kv import KvCache, KvRow, KvSession, Outputs, common_prefix
from edgewise.errors import ContextOverflow, ModelError, UsageError
from edgewise.testing.scripted_edge import MARK, ScriptedEdge, noise

CONTEXT = 16
SCRIPT = noise()
ANYWHERE = EdgeAbilities()

Rewinds = Literal["anywhere", "checkpoints", "no"]


class Held:
    """A lock that knows whether it is held."""

    def __init__(self) -> None:
        self.now = False

    def __enter__(self) -> None:
        assert not self.now, "the lock is not reentrant"
        self.now = True

    def __exit__(self, *_: object) -> None:
        self.now = False


class Cells(KvCache):
    """Holds ids and hands out one buffer of logits again and again, as an engine does."""

    def __init__(
        self,
        *,
        rewinds: Rewinds = "anywhere",
        batch: int = CONTEXT,
        turn: int = CONTEXT,
        kept: Sequence[int] = (),
    ) -> None:
        self.lock = self.held = Held()
        self.batch, self.turn = batch, turn
        self.rewinds: Rewinds = rewinds
        self.ids: list[int] = list(kept)
        self.runs: list[tuple[int, Outputs]] = []
        self.adopted: list[tuple[int, ...]] = []
        self.released: list[tuple[int, ...]] = []
        self.checkpoints: list[tuple[int, bool]] = []
        self.fault: Callable[[int], BaseException | None] = lambda run: None
        self.hidden_rows = self.others = 0
        self._memory = np.zeros((CONTEXT, 258), np.float32)

    @property
    def decodes(self) -> int:
        return len(self.runs) + self.others

    @property
    def computed(self) -> int:
        return sum(count for count, _ in self.runs)

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        assert not self.runs
        self.adopted.append(tuple(ids))
        return self.ids

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        assert self.held.now
        assert start == len(self.ids), "a hole, or ids that stand there already"
        assert 0 < len(ids) <= self.batch
        self.runs.append((len(ids), outputs))
        if error := self.fault(len(self.runs)):
            self.ids += ids[: len(ids) // 2]
            raise error
        self.ids += ids
        count = {"none": 0, "last": 1, "all": len(ids)}[outputs]
        self._memory[:] = np.nan
        self.hidden_rows += count * hidden
        rows: list[KvRow] = []
        for row, end in enumerate(range(len(self.ids) - count + 1, len(self.ids) + 1)):
            self._memory[row] = SCRIPT(self.ids[:end])
            rows.append(KvRow(self._memory[row], np.full(4, end, np.float32) if hidden else None))
        return rows

    def forget(self, position: int) -> int:
        assert self.held.now
        assert 0 <= position <= len(self.ids)
        mark = {"anywhere": 1, "checkpoints": MARK, "no": CONTEXT + 1}[self.rewinds]
        left = position - position % mark
        del self.ids[left:]
        return left

    def checkpoint(self, position: int, *, lasting: bool) -> None:
        assert self.held.now
        assert position == len(self.ids)
        self.checkpoints.append((position, lasting))

    def release(self, held: Sequence[int]) -> None:
        self.released.append(tuple(held))


def over(
    cells: Cells, *, needs: Needs = Needs.LOGITS, abilities: EdgeAbilities = ANYWHERE
) -> KvSession:
    return KvSession(ScriptedEdge(SCRIPT, context=CONTEXT, abilities=abilities), cells, needs, 0)


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
        session = over(cells, abilities=EdgeAbilities(batch_logits=batched))
        for name, what in operations:
            before = 0 if name == "open" else len(ledger.ids)
            if name not in ("step", "rewind") and before + len(what) > CONTEXT:
                with pytest.raises(ContextOverflow, match=f"context of {CONTEXT}"):
                    getattr(session, name)(what)
            else:
                perform(session, ledger, name, what)
            assert session.position == len(ledger.ids)
            assert not cells.held.now
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
        assert cells.ids == text


CHECKPOINTED = EdgeAbilities(rewinds="checkpoints")


class TestCheckpoints:
    """The engine is told of places to come back to, on the way."""

    def test_a_prompt_is_read_up_to_each(self) -> None:
        cells = Cells(rewinds="checkpoints")
        session = over(cells, abilities=CHECKPOINTED)
        session.open([1] * 14)
        session.checkpoint(5)
        session.step()
        assert cells.runs == [(5, "none"), (8, "none"), (1, "last")]
        assert cells.checkpoints == [(5, True), (13, True)]

    def test_one_is_made_before_what_is_computed_behind_it(self) -> None:
        cells = Cells(rewinds="checkpoints")
        session = over(cells, abilities=CHECKPOINTED)
        session.open([1, 0, 1])
        session.step()
        session.checkpoint(3)
        assert cells.checkpoints == [(2, True)]
        session.extend([1])
        session.step()
        session.checkpoint(3)
        session.extend([0])
        session.step()
        assert cells.checkpoints == [(2, True), (3, False)]

    def test_not_where_the_session_went_back_before(self) -> None:
        cells = Cells(rewinds="checkpoints")
        session = over(cells, abilities=CHECKPOINTED)
        session.open([1, 0, 1, 1])
        session.step()
        session.checkpoint(4)
        session.rewind(1)
        session.extend([0, 0, 0, 1, 1])
        session.step()
        assert (4, False) not in cells.checkpoints


class TestRuns:
    def test_a_prompt_is_read_in_turns_and_only_its_end_has_outputs(self) -> None:
        cells = Cells(turn=4)
        session = over(cells)
        session.open([1] * 11)
        session.step()
        assert cells.runs == [(4, "none"), (4, "none"), (2, "none"), (1, "last")]

    def test_hidden_states_are_made_for_outputs_alone(self) -> None:
        cells = Cells()
        session = over(cells, needs=Needs.HIDDEN)
        session.open([1] * 9)
        assert session.step().hidden[0] == 9
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
        assert cells.runs == [(1, "last")] * 7
        rows = [step.logits for step in steps]
        assert all(
            np.array_equal(row, SCRIPT([1, 1, 0, 1, 1, 0, 0][: i + 2]))
            for i, row in enumerate(rows)
        )


class TestLife:
    def test_what_is_kept_is_gone_on_from(self) -> None:
        cells = Cells(kept=[1, 2, 3, 4])
        session = over(cells)
        assert session.open([1, 2, 3, 9]) == 3
        assert np.array_equal(session.step().logits, SCRIPT([1, 2, 3, 9]))
        assert cells.computed == 1
        session.open([7])
        assert len(cells.adopted) == 1

    def test_it_is_released_once_with_what_was_computed(self) -> None:
        cells = Cells()
        session = over(cells)
        session.open([1, 2, 3])
        session.step()
        session.extend([4, 5])
        session.close()
        session.close()
        assert cells.released == [(1, 2, 3)]

    def test_a_closed_one_is_refused(self) -> None:
        session = over(Cells())
        session.open([1])
        session.close()
        calls: list[Callable[[], object]] = [
            session.step,
            lambda: session.steps([1]),
            lambda: session.open([1]),
            lambda: session.extend([1]),
            lambda: session.rewind(0),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="closed"):
                call()

    def test_hidden_states_that_the_engine_lacks_are_refused_at_once(self) -> None:
        cells = Cells()
        with pytest.raises(UsageError) as caught:
            over(cells, needs=Needs.HIDDEN, abilities=EdgeAbilities(hidden=False))
        assert caught.value.setting == "router"
        assert str(caught.value).endswith("; choose a router that reads none, such as entropy.")
        assert cells.released == [()]

    @pytest.mark.parametrize("bad", [[-1], [258], [0, 258, 0]])
    def test_ids_of_no_vocabulary(self, bad: list[int]) -> None:
        session = over(Cells())
        for call in (session.open, session.extend, session.steps):
            with pytest.raises(UsageError, match="257"):
                call(bad)
        assert session.position == 0
