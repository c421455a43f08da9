"""The check of a prefix is the same however it was told: at once, in parts, cut and told again."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import CloudProtocolError
from edgewise.wire.protocol import MAX_IDS, Ledger, Push, encode, from_device

# Of lengths around those at which many ids are hashed as vectors.
PART = st.tuples(
    st.sampled_from([0, 1, 5, 1022, 1023, 1024, 1025, 2048, 3000]), st.integers(0, 2**32 - 1)
)


def numbers(length: int, first: int) -> list[int]:
    return [(first + 2_654_435_761 * index) % 2**32 for index in range(length)]


def plain(ids: list[int]) -> int:
    """As docs/protocol.md says."""
    check = 0
    for token in ids:
        check = (check * 1_000_003 + token + 1) % (2**61 - 1)
    return check


@given(st.lists(st.tuples(PART, st.floats(0, 1)), max_size=8))
def test_the_check_is_that_of_the_page(parts: list[tuple[tuple[int, int], float]]) -> None:
    ledger, expected = Ledger(), list[int]()
    for (length, first), where in parts:
        at, ids = int(where * len(expected)), numbers(length, first)
        expected = [*expected[:at], *ids]
        assert ledger.put(at, Ledger(ids) if length % 2 else ids)
        assert (ledger.ids, len(ledger), ledger.check) == (expected, len(expected), plain(expected))


@pytest.mark.parametrize("token", [0, 1, 2**32 - 2, 2**32 - 1])
def test_the_longest_prefix(token: int) -> None:
    ids = [token] * MAX_IDS
    assert Ledger(ids).check == plain(ids)


def test_a_copy_stays_as_it_was() -> None:
    ledger = Ledger([1, 2, 3])
    copied = ledger.copy()
    ledger.put(1, [9])
    assert (copied.ids, copied.check) == ([1, 2, 3], plain([1, 2, 3]))
    assert (ledger.ids, ledger.check) == ([1, 9], plain([1, 9]))


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_what_are_no_ids_is_a_sentence(ids: list[int]) -> None:
    with pytest.raises(CloudProtocolError, match="32-bit"):
        Ledger(ids)
    ledger = Ledger([1])
    with pytest.raises(CloudProtocolError):
        ledger.put(1, ids)
    assert ledger.ids == [1]


def test_a_full_prefix_is_small() -> None:
    data = encode(Push(0, [70_000] * MAX_IDS, 0))
    tracemalloc.start()
    frame = from_device(data)
    assert isinstance(frame, Push)
    ledger = Ledger(frame.ids)
    del frame
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(ledger) == MAX_IDS
    assert size < 5 * MAX_IDS
