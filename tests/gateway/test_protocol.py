"""Frames, and the check of a prefix: the same however its ids came. tests/test_outside_bytes.py has
what is no frame."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import CloudProtocolError
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire import protocol
from edgewise.wire.protocol import (
    MAX_IDS,
    Ask,
    Cancel,
    Close,
    Failed,
    Ledger,
    NeedFull,
    Open,
    Opened,
    Prefetch,
    Reply,
    encode,
    from_device,
    from_gateway,
    packed,
    unpacked,
)
from tests.gateway.plain_client import check as plain

IDS = st.lists(st.integers(0, 151_935), max_size=40)


def test_nested_lists_do_not_exhaust_the_stack() -> None:
    with pytest.raises(CloudProtocolError):
        from_device(b"\x91" * 100_000)


@given(IDS, IDS, st.integers(0, 2**32 - 1))
def test_frames_survive_the_wire(ids: list[int], more: list[int], number: int) -> None:
    ledger = Ledger()
    ledger.put(0, ids)
    for frame in (
        Open(1, "0" * 16, "name"),
        Prefetch(len(ids), more, ledger.check),
        Ask(number, 0, ids, ledger.check, 4, 100, 5, (0.7, 40, 0.9, 0.0, 3)),
        Cancel(number),
        Close(),
    ):
        assert from_device(encode(frame)) == frame
    for reply in (
        Opened(1, "name", 3, 4, "vLLM", "model"),
        Reply(number, tuple(ids), (None,) * len(ids), True, 1, 2, 0.1, (((1, -0.5),),)),
        NeedFull(None),
        Failed(None, "timeout", "Too late.", 5),
    ):
        assert from_gateway(encode(reply)) == reply


def test_a_consult_is_small_whatever_the_prompt() -> None:
    """120 bytes up for 16 new ids, 200 down, candidates excluded."""
    ledger = Ledger()
    ledger.put(0, [151_000] * 4000)
    ledger.put(4000, [151_935 - i for i in range(16)])
    up = encode(Ask(2**32 - 1, 4000, ledger.ids[4000:], ledger.check, 1, 60_000, 5))
    assert len(up) <= 120
    down = encode(Reply(2**32 - 1, (151_935,), (-12.3456789,), False, 4015, 1, 0.0123))
    assert len(down) <= 200


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=2**32 - 1)],
)
def test_sampling_survives_the_wire(sampling: Sampling) -> None:
    assert unpacked(packed(sampling)) == sampling


def test_other_vocabularies_have_other_fingerprints() -> None:
    class Other(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [byte ^ 1 for byte in text.encode()]

    same = protocol.tokenizer_fingerprint(ByteTokenizer())
    assert same == protocol.tokenizer_fingerprint(ByteTokenizer())
    assert same != protocol.tokenizer_fingerprint(Other())
    assert protocol.fingerprint([[1, 2], [3]]) != protocol.fingerprint([[1], [2, 3]])


# Of lengths around those at which many ids are hashed as vectors.
PART = st.tuples(
    st.sampled_from([0, 1, 5, 1022, 1023, 1024, 1025, 2048, 3000]), st.integers(0, 2**32 - 1)
)


def numbers(length: int, first: int) -> list[int]:
    return [(first + 2_654_435_761 * index) % 2**32 for index in range(length)]


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


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_what_are_no_ids_is_a_sentence(ids: list[int]) -> None:
    with pytest.raises(CloudProtocolError, match="32-bit"):
        Ledger(ids)
    ledger = Ledger([1])
    with pytest.raises(CloudProtocolError):
        ledger.put(1, ids)
    assert ledger.ids == [1]


def test_a_full_prefix_is_small() -> None:
    data = encode(Prefetch(0, [70_000] * MAX_IDS, 0))
    tracemalloc.start()
    frame = from_device(data)
    assert isinstance(frame, Prefetch)
    ledger = Ledger(frame.ids)
    del frame
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(ledger) == MAX_IDS
    assert size < 5 * MAX_IDS
