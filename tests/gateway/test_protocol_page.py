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
from tests.gateway.processes import until
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


def test_the_example_of_a_consults_name() -> None:
    found = re.search(r"ask (\d+) of the session\s`(\S+)`\sis\s`(\S+)`", TEXT)
    assert found
    assert protocol.request_id(found[2], int(found[1])) == found[3]


def test_the_example_of_the_check() -> None:
    assert f"of [72] it is {check([72])}, of [72, 105] it is {check([72, 105])}." in TEXT


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


def conversations() -> list[list[Frame]]:
    """A connection each."""
    found: list[list[Frame]] = []
    for frame in FRAMES:
        if frame.kind == "open":
            found.append([])
        found[-1].append(frame)
    return found


def test_its_frames_are_the_pages_bytes(page_engine: ScriptedEngine, page_gateway: Running) -> None:
    """The page's exchange once more: the same frames, made from its rules, the same answers."""
    names = {"": ""}
    for frames in conversations():
        with PlainClient(page_gateway.url) as client:
            for frame in frames:
                if frame.side == "device":
                    told(frame, client, names, page_engine)
                else:
                    heard(frame, client, names)
        until(lambda: not page_gateway.gateway.connections)


NUMBERS = {"open": 1, "push": 2, "ask": 3, "cancel": 4, "close": 5}


def told(frame: Frame, client: PlainClient, names: dict[str, str], engine: ScriptedEngine) -> None:
    """Send what the page says; the consult that is cancelled is held up until it is."""
    values = frame.values
    assert msgspec.msgpack.encode([NUMBERS[frame.kind], *values.values()]) == frame.data
    if "session" in values:
        values["session"] = names[values["session"]]
    if values.get("position", 99) <= len(client.held):
        client.held[values["position"] :] = values["ids"]
        assert values["check"] == check(client.held)
    held_up = values.get("deadline") == 60_000
    if held_up:
        engine.fault = lambda number: "hang"
    client.send([NUMBERS[frame.kind], *values.values()])
    if held_up:
        until(lambda: engine.running == 1)
    if frame.kind == "cancel":
        until(lambda: engine.running == 0)
        engine.fault = lambda number: None


def heard(frame: Frame, client: PlainClient, names: dict[str, str]) -> None:
    data = client.socket.recv(10)
    assert isinstance(data, bytes)
    if frame.kind == "opened":
        shown, drawn = frame.values["session"], msgspec.msgpack.decode(data)[2]
        assert names.setdefault(shown, drawn) == drawn
        client.held[frame.values["known"] :] = []
    for shown, drawn in names.items():
        # A consult is named after the beginning of its session's name.
        data = data.replace(drawn.encode(), shown.encode())
        data = data.replace(drawn[:8].encode(), shown[:8].encode())
    assert data == frame.data
