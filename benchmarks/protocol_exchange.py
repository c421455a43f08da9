"""Every frame of the session protocol, as it travels: `python -m benchmarks.protocol_exchange`.

A device of a few lines talks to a real gateway over a scripted engine. Its bytes, and how they
read, go into docs/protocol.md between two marks. Names that a gateway draws stand as they came.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from benchmarks.shared import until
from edgewise.testing.scripted_edge import EOS, ByteTokenizer
from edgewise.wire.protocol import (
    PATH,
    VERSION,
    Ask,
    Cancel,
    Close,
    FromDevice,
    FromGateway,
    Ledger,
    Open,
    Opened,
    Prefetch,
    encode,
    from_device,
    from_gateway,
    tokenizer_fingerprint,
)
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
BEGIN, END = "<!-- exchange -->", "<!-- /exchange -->"

TEXT = b"Hi, and welcome!"
"""The engine knows one text; the device has its beginning."""

SECONDS = 10.0

WIDTH = 17
"""Bytes of a line."""

Side = Literal["device", "gateway"]


class Message(NamedTuple):
    """A frame as it travelled, and what it is there for."""

    side: Side
    data: bytes
    why: str


@contextmanager
def text_engine() -> Iterator[ScriptedEngine]:
    """Writes `TEXT`, whoever asks."""
    made = ScriptedEngine(script=lambda ids: TEXT[len(ids)] if len(ids) < len(TEXT) else EOS)
    try:
        yield made
    finally:
        made.close()


class Device:
    """Sends and receives frames, and keeps them."""

    def __init__(self, url: str) -> None:
        self.messages: list[Message] = []
        self._url = url.replace("http", "ws", 1) + PATH
        self._connected = ExitStack()
        self._socket: ClientConnection | None = None
        self._ledger = Ledger()
        self._tokenizer = tokenizer_fingerprint(ByteTokenizer())

    def open(self, why: str, *, session: str = "") -> FromGateway:
        """Over a connection of its own."""
        self.leave()
        self._socket = self._connected.enter_context(connect(self._url, compression=None))
        self.send(Open(VERSION, self._tokenizer, session), why)
        return self._receive()

    def push(self, position: int, ids: Sequence[int], why: str) -> None:
        self._ledger.put(position, list(ids))
        self.send(Prefetch(position, list(ids), self._ledger.checksum), why)

    def ask(self, number: int, position: int, ids: Sequence[int], why: str, **more: object) -> None:
        """Ids that lie past the end are sent, but not held."""
        self._ledger.put(position, list(ids))
        asked = Ask(number, position, list(ids), self._ledger.checksum)
        self.send(msgspec.structs.replace(asked, **more), why)

    def close(self, why: str) -> None:
        """Returns when the gateway has closed the connection."""
        self.send(Close(), why)
        assert self._socket is not None
        try:
            self._socket.recv(SECONDS)
        except ConnectionClosed:
            return
        raise AssertionError("a frame came instead")

    def told(self, why: str) -> FromGateway:
        """The gateway's next frame."""
        frame = self._receive()
        self.messages[-1] = self.messages[-1]._replace(why=why)
        return frame

    def leave(self) -> None:
        self._connected.close()

    def send(self, frame: FromDevice, why: str) -> None:
        assert self._socket is not None
        data = encode(frame)
        self._socket.send(data)
        self.messages.append(Message("device", data, why))

    def _receive(self) -> FromGateway:
        assert self._socket is not None
        data = self._socket.recv(SECONDS)
        assert isinstance(data, bytes)
        self.messages.append(Message("gateway", data, "its answer"))
        return from_gateway(data)


def exchange(url: str, engine: ScriptedEngine) -> list[Message]:
    """Every kind of frame, at the gateway of an engine that is held up to have time to cancel."""
    device = Device(url)
    opened = device.open("a new session; `tokenizer` is the byte tokenizer's")
    assert isinstance(opened, Opened)
    device.push(0, TEXT[:1], "the id of H, ahead of any consult; it is not answered")
    device.ask(7, 1, TEXT[1:2], "two tokens after Hi, two candidates each", n=2, top=2)
    device.told("the ids of a comma and a space; the gateway does not hold them yet")
    device.ask(8, 30, [33], "a position past the end")
    device.told("nothing of the session is held now")
    engine.fault = lambda number: "hang"
    device.ask(9, 0, TEXT[:6], "so the whole prefix is sent", n=3, deadline=60_000)
    assert until(lambda: engine.running == 1)
    device.send(Cancel(9), "the completion is not wanted any more; it is not answered")
    assert until(lambda: engine.running == 0)
    engine.fault = lambda number: None
    device.ask(10, 6, [], "the same ids once more, with an invalid temperature", sampling=HOT)
    device.told("the reason; the session goes on")
    device.leave()
    resumed = again(device, opened.session)
    assert resumed.session == opened.session
    device.ask(11, 6, b"d!", "no token, but what the model says of d and !", n=0, verify=2)
    device.told("it would have written a space for !")
    device.close("the session is forgotten; the gateway hangs up")
    device.leave()
    return device.messages


HOT = (200.0, 0, 1.0, 0.0, 1)


def again(device: Device, session: str) -> Opened:
    """Resumed, once the gateway has noticed that the earlier connection is gone."""
    for _ in range(100):
        opened = device.open("the same session, over another connection", session=session)
        assert isinstance(opened, Opened)
        if opened.known:
            device.messages[-1] = device.messages[-1]._replace(why="it still holds six ids")
            return opened
        device.close("")
        del device.messages[-3:]
        time.sleep(0.05)
    raise TimeoutError("the session was not kept")


def shown(messages: Sequence[Message]) -> str:
    """The block of the page: a paragraph a frame, a line an element."""
    return "\n\n".join("\n".join(_paragraph(message)) for message in messages)


def _paragraph(message: Message) -> list[str]:
    decode = from_device if message.side == "device" else from_gateway
    frame = decode(message.data)
    elements = msgspec.msgpack.decode(message.data)
    kind = words(type(frame).__name__)
    parts = [
        (message.data[:1], f"array of {len(elements)}"),
        (message.data[1:2], f"{elements[0]}: {kind}"),
    ]
    for name, value in zip(frame.__struct_fields__, elements[1:], strict=True):
        parts.append((encode(value), f"{name} {json.dumps(value)}"))
    assert b"".join(data for data, _ in parts) == message.data, "an element a line"
    lines = [f"{message.side}: {kind}, {message.why}"]
    for data, reading in parts:
        first, *more = [data[at : at + WIDTH].hex(" ") for at in range(0, len(data), WIDTH)]
        lines += [f"    {first:<{3 * WIDTH}} {reading}", *(f"    {rest}" for rest in more)]
    return lines


def words(name: str) -> str:
    """`NeedFull` is "need full"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with text_engine() as made, gateway([made.url]) as running:
        messages = exchange(running.url, made)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    block = f"{BEGIN}\n\n```text\n{shown(messages)}\n```\n\n{END}"
    PAGE.write_text(before + block + after, encoding="utf-8")
    print(f"{len(messages)} frames written to {PAGE.name}")


if __name__ == "__main__":
    main()
