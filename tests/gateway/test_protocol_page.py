"""docs/protocol.md holds: its numbers are the code's, its bytes what travels, its rules enough."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from benchmarks.protocol_exchange import BEGIN, END, PAGE, Side, text_engine, words
from edgewise.addresses import bundled
from edgewise.edge.base import PROBES
from edgewise.edge.llamacpp import LlamaModel
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire import protocol
from edgewise.wire.protocol import FromDevice, FromGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.plain_client import PlainClient, check, fingerprint, page_probes
from tests.gateway.running import Running, gateway

TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = TEXT[TEXT.index(BEGIN) : TEXT.index(END)]
LINE = re.compile(r"^    (?P<hex>[0-9a-f]{2}(?: [0-9a-f]{2})*)(?:  +(?P<reading>\S.*))?$")


class Element(NamedTuple):
    """A line of the page: bytes, and how it says they read."""

    data: bytes
    reading: str


class Frame(NamedTuple):
    """A paragraph of the page."""

    side: Side
    kind: str
    elements: list[Element]

    @property
    def data(self) -> bytes:
        return b"".join(element.data for element in self.elements)

    @property
    def values(self) -> dict[str, Any]:
        """By the page's own reading."""
        pairs = (element.reading.partition(" ") for element in self.elements[2:])
        return {name: json.loads(value) for name, _, value in pairs}


def read_frames() -> Iterator[Frame]:
    for paragraph in BLOCK.strip().split("\n\n"):
        title, *lines = paragraph.replace("```text\n", "").splitlines()
        if not (found := re.match(r"(device|gateway): ([a-z ]+), ", title)):
            continue
        elements: list[Element] = []
        for line in lines:
            if not (match := LINE.match(line)):
                continue
            data = bytes.fromhex(match["hex"])
            if match["reading"] is None:
                last = elements.pop()
                elements.append(Element(last.data + data, last.reading))
            else:
                elements.append(Element(data, match["reading"]))
        side: Side = "device" if found[1] == "device" else "gateway"
        yield Frame(side, found[2], elements)


FRAMES = list(read_frames())
KINDS = [*FromDevice.__args__, *FromGateway.__args__]


def decoded(frame: Frame) -> FromDevice | FromGateway:
    decode = protocol.from_device if frame.side == "device" else protocol.from_gateway
    return decode(frame.data)


def test_every_kind_of_frame_is_shown() -> None:
    shown = {type(decoded(frame)) for frame in FRAMES}
    assert shown == set(KINDS)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: f"{frame.side} {frame.kind}")
def test_bytes_read_as_the_page_says(frame: Frame) -> None:
    found = decoded(frame)
    assert protocol.encode(found) == frame.data
    assert words(type(found).__name__) == frame.kind
    number = type(found).__struct_config__.tag
    assert frame.elements[0].reading == f"array of {len(frame.elements) - 1}"
    assert frame.elements[1].reading == f"{number}: {frame.kind}"
    assert list(frame.values) == list(found.__struct_fields__)
    assert frame.values == {name: builtin(getattr(found, name)) for name in frame.values}
    for element in frame.elements[2:]:
        value = json.loads(element.reading.partition(" ")[2])
        assert msgspec.msgpack.decode(element.data) == value


def builtin(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


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


def test_the_bundled_tokenizers_vector() -> None:
    with LlamaModel(bundled("cloud"), threads=1) as model:
        tokenised = [model.tokenizer.encode(text) for text in page_probes()]
    assert f"`{tokenised[0]}` of the first" in TEXT
    assert f"`{tokenised[2]}` of the third" in TEXT
    assert f"`{fingerprint(tokenised)}`" in TEXT


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
        client.push(0, list(b"Hi"))
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
