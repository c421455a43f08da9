"""Frames and checks: whatever comes in is a frame or a sentence."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import CloudProtocolError
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire import protocol
from edgewise.wire.protocol import (
    Ask,
    Cancel,
    Close,
    Failed,
    FromDevice,
    FromGateway,
    Ledger,
    NeedFull,
    Open,
    Opened,
    Push,
    Reply,
    encode,
    from_device,
    from_gateway,
    packed,
    unpacked,
)

IDS = st.lists(st.integers(0, 151_935), max_size=40)


@given(st.binary(max_size=400))
def test_bytes_are_a_frame_or_a_sentence(data: bytes) -> None:
    for decode, frames in ((from_device, FromDevice), (from_gateway, FromGateway)):
        try:
            frame = decode(data)
        except CloudProtocolError:
            continue
        assert isinstance(frame, frames)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**64 - 1) | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=6),
    ).filter(lambda value: isinstance(value, list))
)
def test_any_message_is_a_frame_or_a_sentence(value: Any) -> None:
    try:
        frame = from_device(msgspec.msgpack.encode(value))
    except CloudProtocolError:
        return
    assert isinstance(frame, Open | Push | Ask | Cancel | Close)


def test_nested_lists_do_not_exhaust_the_stack() -> None:
    with pytest.raises(CloudProtocolError):
        from_device(b"\x91" * 100_000)


def test_a_frame_too_long() -> None:
    with pytest.raises(CloudProtocolError, match="at most"):
        from_device(b"\x00" * (protocol.MAX_FRAME + 1))


@given(IDS, IDS, st.integers(0, 2**32 - 1))
def test_frames_survive_the_wire(ids: list[int], more: list[int], number: int) -> None:
    ledger = Ledger()
    ledger.put(0, ids)
    for frame in (
        Open(1, "0" * 16, "name"),
        Push(len(ids), more, ledger.check),
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


@given(IDS, IDS, IDS, st.data())
def test_the_check_follows_from_the_ids_alone(
    first: list[int], second: list[int], third: list[int], data: st.DataObject
) -> None:
    ledger = Ledger()
    assert ledger.put(0, first)
    assert ledger.put(data.draw(st.integers(0, len(first))), second)
    at = data.draw(st.integers(0, len(ledger.ids)))
    expected = [*ledger.ids[:at], *third]
    assert ledger.put(at, third)
    assert ledger.ids == expected
    plain = 0
    for token in expected:
        plain = (plain * 1_000_003 + token + 1) % (2**61 - 1)
    assert ledger.check == plain
    assert not ledger.put(len(expected) + 1, [])


@given(IDS.filter(bool), st.data())
def test_other_ids_have_another_check(ids: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids]
    other[at] += 1
    left, right = Ledger(), Ledger()
    left.put(0, ids)
    right.put(0, other)
    assert left.check != right.check


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
