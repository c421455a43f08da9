"""Frames, and the check of a prefix: the same however its ids came, and as docs/protocol.md says.
tests/test_outside_bytes.py has what is no frame.
"""

import re
import tracemalloc
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
from tests.gateway.plain_client import PlainClient, check, fingerprint, page_probes
from tests.gateway.running import gateway

TEXT = PAGE.read_text(encoding="utf-8")
PARAGRAPHS = TEXT[TEXT.index(BEGIN) : TEXT.index(END)].replace("```text\n", "").split("\n\n")
FRAMES = [one.rstrip("`\n") for one in PARAGRAPHS if one.startswith(("device: ", "gateway: "))]


def message_of(frame: str) -> Message:
    """A paragraph's bytes, which stand before two blanks or the end of a line."""
    title, *lines = frame.splitlines()
    side, _, why = title.partition(": ")
    data = bytes.fromhex("".join(line[4:].partition("  ")[0][:50] for line in lines))
    return Message(cast(Side, side), data, why.partition(", ")[2])


def test_bytes_read_as_the_page_says() -> None:
    """And every kind of frame is shown."""
    for frame in FRAMES:
        message = message_of(frame)
        decode = protocol.from_device if message.side == "device" else protocol.from_gateway
        assert protocol.encode(decode(message.data)) == message.data
        assert shown([message]) == frame
    every = *protocol.FromDevice.__args__, *protocol.FromGateway.__args__
    titles = {frame.partition(": ")[2].partition(",")[0] for frame in FRAMES}
    assert titles == {words(kind.__name__) for kind in every}


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


def test_a_client_of_the_page_alone_is_served() -> None:
    """The reply's ids are its own to send: it writes the engine's whole text, two at a time."""
    with (
        text_engine() as engine,
        gateway([engine.url]) as running,
        PlainClient(running.url) as client,
    ):
        assert client.open()[0] == 16
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


@given(IDS, IDS, st.integers(0, 2**32 - 1))
def test_frames_survive_the_wire(ids: list[int], more: list[int], number: int) -> None:
    checksum = protocol.Ledger(ids).checksum
    for frame in (
        protocol.Open(1, "0" * 16, "name"),
        protocol.Prefetch(len(ids), more, checksum),
        protocol.Ask(number, 0, ids, checksum, 4, 100, 5, (0.7, 40, 0.9, 0.0, 3)),
        protocol.Ask(number, 0, ids, checksum, 0, verify=3),
        protocol.Cancel(number),
        protocol.Close(),
    ):
        assert protocol.from_device(protocol.encode(frame)) == frame
    for reply in (
        protocol.Opened(1, "name", 3, 4, "vLLM", "model", True),
        protocol.Reply(number, tuple(ids), (None,) * len(ids), True, 1, 2, 0.1, (((1, -0.5),),)),
        protocol.Reply(number, (), (), verified=((-3.5, 7, -0.5),)),
        protocol.NeedFull(None),
        protocol.Failed(None, "timeout", "Too late.", 5),
    ):
        assert protocol.from_gateway(protocol.encode(reply)) == reply
    every = Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=number)
    for sampling in (Sampling(), every):
        assert protocol.unpacked(protocol.packed(sampling)) == sampling


def test_a_consult_is_small_whatever_the_prompt() -> None:
    """120 bytes up for 16 new ids, 200 down, candidates excluded; and so is a full prefix."""
    new = [151_935 - i for i in range(16)]
    checksum = protocol.Ledger([151_000] * 4000 + new).checksum
    up = protocol.Ask(2**32 - 1, 4000, new, checksum, 1, 60_000, 5)
    assert len(protocol.encode(up)) <= 120
    down = protocol.Reply(2**32 - 1, (151_935,), (-12.3456789,), False, 4015, 1, 0.0123)
    assert len(protocol.encode(down)) <= 200
    data = protocol.encode(protocol.Prefetch(0, [70_000] * protocol.MAX_IDS, 0))
    tracemalloc.start()
    frame = protocol.from_device(data)
    assert isinstance(frame, protocol.Prefetch)
    ledger = protocol.Ledger(frame.ids)
    del frame
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(ledger) == protocol.MAX_IDS
    assert size < 5 * protocol.MAX_IDS


# Of lengths around those at which many ids are hashed as vectors.
PART = st.tuples(
    st.sampled_from([0, 1, 5, 1022, 1023, 1024, 1025, 2048, 3000]), st.integers(0, 2**32 - 1)
)


@given(st.lists(st.tuples(PART, st.floats(0, 1)), max_size=8))
def test_the_check_is_that_of_the_page(parts: list[tuple[tuple[int, int], float]]) -> None:
    ledger, expected = protocol.Ledger(), list[int]()
    for (length, first), where in parts:
        at = int(where * len(expected))
        ids = [(first + 2_654_435_761 * index) % 2**32 for index in range(length)]
        expected = [*expected[:at], *ids]
        assert ledger.put(at, protocol.Ledger(ids) if length % 2 else ids)
        assert ledger.ids == expected
        assert (len(ledger), ledger.checksum) == (len(expected), check(expected))


@pytest.mark.parametrize("token", [0, 1, 2**32 - 2, 2**32 - 1])
def test_the_longest_prefix(token: int) -> None:
    ids = [token] * protocol.MAX_IDS
    assert protocol.Ledger(ids).checksum == check(ids)


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_what_are_no_ids_is_a_sentence(ids: list[int]) -> None:
    with pytest.raises(CloudProtocolError, match="32-bit"):
        protocol.Ledger(ids)
    ledger = protocol.Ledger([1])
    with pytest.raises(CloudProtocolError):
        ledger.put(1, ids)
    assert ledger.ids == [1]
    # Nested lists do not exhaust the stack.
    with pytest.raises(CloudProtocolError):
        protocol.from_device(b"\x91" * 100_000)
