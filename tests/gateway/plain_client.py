"""A client of the session protocol, written from docs/protocol.md alone.

No module of Edgewise helps it.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def check(ids: list[int]) -> int:
    """As the page has it."""
    value = 0
    for token in ids:
        value = (value * 1000003 + token + 1) % (2**61 - 1)
    return value


def fingerprint(tokenised: list[list[int]]) -> str:
    """As the page has it."""
    return f"{check([token for ids in tokenised for token in [*ids, len(ids)]]):016x}"


def page_probes() -> list[str]:
    found = re.search(r"<!-- probes -->\s*```json\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return json.loads(found[1])


class PlainClient:
    """Written from the page alone."""

    def __init__(self, url: str, key: str | None = None, *, origin: str | None = None) -> None:
        """With an `origin` as a page in a browser: its key is among the subprotocols."""
        bearer = {"Authorization": f"Bearer {key}"} if key and not origin else {}
        offered = ["edgewise.v1", *([f"edgewise.key.{key}"] if key else [])]
        self._connecting = connect(
            url.replace("http", "ws", 1) + "/v1/session",
            compression=None,
            additional_headers=bearer,
            origin=origin,  # type: ignore[arg-type]
            subprotocols=offered if origin else None,  # type: ignore[arg-type]
        )
        self.held: list[int] = []

    def __enter__(self) -> "PlainClient":
        self.socket: ClientConnection = self._connecting.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._connecting.__exit__(*error)

    tokenizer = fingerprint([list(text.encode()) for text in page_probes()])

    def open(self, session: str = "") -> list[Any]:
        self.send([1, 1, self.tokenizer, session])
        return self.receive()

    def prefetch(self, position: int, ids: list[int]) -> None:
        self.held[position:] = ids
        self.send([2, position, ids, check(self.held)])

    def ask(self, number: int, position: int, ids: list[int], *more: Any) -> list[Any]:
        self.held[position:] = ids
        self.send([3, number, position, ids, check(self.held), *more])
        return self.receive()

    def send(self, frame: Any) -> None:
        self.socket.send(msgspec.msgpack.encode(frame))

    def receive(self) -> list[Any]:
        return msgspec.msgpack.decode(self.socket.recv(10))

    def code(self) -> int | None:
        """With which the gateway closes."""
        try:
            while True:
                self.socket.recv(10)
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None


@contextmanager
def opened(url: str, key: str | None = None) -> Iterator[PlainClient]:
    """A client with a session."""
    with PlainClient(url, key) as client:
        assert client.open()[0] == 16
        yield client
