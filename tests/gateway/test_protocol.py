"""Frames, and the check of a prefix: the same however its ids came, and as docs/protocol.md says.
tests/test_outside_bytes.py has what is no frame.
"""

import re
import tracemalloc
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.protocol_exchange import BEGIN, END, PAGE, Message, Side, shown, text_engine, words
from edgewise.edge.base import PROBES
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
    FromDevice,
    FromGateway,
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
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.plain_client import PlainClient, check, fingerprint, page_probes
from tests.gateway.running import Running, gateway

TEXT = PAGE.read_text(encoding="utf-8")
PARAGRAPHS = TEXT[TEXT.index(BEGIN) : TEXT.index(END)].replace("```text\n", "").split("\n\n")
FRAMES = [one.rstrip("`\n") for one in PARAGRAPHS if one.startswith(("device: ", "gateway: "))]


def message_of(frame: str) -> Message:
    """A paragraph's bytes, which stand before two blanks or the end of a line."""
    title, *lines = frame.splitlines()
    side, _, why = title.partition(": ")
    data = bytes.fromhex("".join(line[4:].partition("  ")[0][:50] for line in lines))
    return Message(cast(Side, side), data, why.partition(", ")[2])


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.partition(",")[0])
def test_bytes_read_as_the_page_says(frame: str) -> None:
    message = message_of(frame)
    decode = protocol.from_device if message.side == "device" else protocol.from_gateway
    assert protocol.encode(decode(message.data)) == message.data
    assert shown([message]) == frame


def test_every_kind_of_frame_is_shown() -> None:
    kinds = {words(kind.__name__) for kind in (*FromDevice.__args__, *FromGateway.__args__)}
    assert {frame.partition(": ")[2].partition(",")[0] for frame in FRAMES} == kinds


def test_the_probes_and_the_worked_vector() -> None:
    probes = page_probes()
    assert tuple(probes) == PROBES
    told = [
        (int(count), int(value))
        for count, value in re.findall(r"^\| [1-5] \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    ]
    ids: list[int] = []
    for text, (count, value) in zip(probes, told, strict=True):
        ids += [*text.encode(), len(text.encode())]
        assert len(text.encode()) == count
        assert check(ids) == value
    shown = fingerprint([list(text.encode()) for text in probes])
    assert f"so `tokenizer` is `{shown}`" in TEXT
    assert shown == protocol.tokenizer_fingerprint(ByteTokenizer())


@pytest.fixture(scope="module")
def page_engine() -> Iterator[ScriptedEngine]:
    with text_engine() as made:
        yield made


@pytest.fixture(scope="module")
def page_gateway(page_engine: ScriptedEngine) -> Iterator[Running]:
    with gateway([page_engine.url]) as running:
        yield running


def test_a_client_of_the_page_alone_is_served(page_gateway: Running) -> None:
    """The reply's ids are its own to send: it writes the engine's whole text, two at a time."""
    with PlainClient(page_gateway.url) as client:
        opened = client.open()
        assert opened[0] == 16
        client.prefetch(0, list(b"Hi"))
        written = list(b"Hi")
        for number in range(20):
            new = written[len(client.held) :]
            reply = client.ask(number, len(client.held), new, 2, 5000, 1)
            assert (reply[0], reply[1]) == (17, number)
            assert len(reply[3]) == len(reply[2]) == len(reply[8])
            written += [token for token in reply[2] if token < 256]
            if reply[4]:
                break
        assert bytes(written) == b"Hi, and welcome!"
        client.send([5])
        assert client.code() is None


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
        Prefetch(len(ids), more, ledger.checksum),
        Ask(number, 0, ids, ledger.checksum, 4, 100, 5, (0.7, 40, 0.9, 0.0, 3)),
        Ask(number, 0, ids, ledger.checksum, 0, verify=3),
        Cancel(number),
        Close(),
    ):
        assert from_device(encode(frame)) == frame
    for reply in (
        Opened(1, "name", 3, 4, "vLLM", "model", True),
        Reply(number, tuple(ids), (None,) * len(ids), True, 1, 2, 0.1, (((1, -0.5),),)),
        Reply(number, (), (), verified=((-3.5, 7, -0.5),)),
        NeedFull(None),
        Failed(None, "timeout", "Too late.", 5),
    ):
        assert from_gateway(encode(reply)) == reply


def test_a_consult_is_small_whatever_the_prompt() -> None:
    """120 bytes up for 16 new ids, 200 down, candidates excluded."""
    ledger = Ledger()
    ledger.put(0, [151_000] * 4000)
    ledger.put(4000, [151_935 - i for i in range(16)])
    up = encode(Ask(2**32 - 1, 4000, ledger.ids[4000:], ledger.checksum, 1, 60_000, 5))
    assert len(up) <= 120
    down = encode(Reply(2**32 - 1, (151_935,), (-12.3456789,), False, 4015, 1, 0.0123))
    assert len(down) <= 200


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=2**32 - 1)],
)
def test_sampling_survives_the_wire(sampling: Sampling) -> None:
    assert unpacked(packed(sampling)) == sampling


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
        assert (ledger.ids, len(ledger), ledger.checksum) == (
            expected,
            len(expected),
            check(expected),
        )


@pytest.mark.parametrize("token", [0, 1, 2**32 - 2, 2**32 - 1])
def test_the_longest_prefix(token: int) -> None:
    ids = [token] * MAX_IDS
    assert Ledger(ids).checksum == check(ids)


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
