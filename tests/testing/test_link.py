"""The link emulator, with a client and a server of its own."""

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from edgewise.testing.link import Link, Quality

TRIP = 0.1


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


Linked = Callable[..., tuple[Link, socket.socket]]


@pytest.fixture
def linked(echo: int) -> Iterator[Linked]:
    """A link to the server, and a client connected over it."""
    with ExitStack() as stack:

        def make(port: int = echo, **quality: float) -> tuple[Link, socket.socket]:
            link = Link("127.0.0.1", port, Quality(**quality))
            stack.callback(link.close)
            return link, stack.enter_context(connected(link))

        yield make


def connected(link: Link) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", link.port))
    client.settimeout(60)
    return client


def round_trip(client: socket.socket, size: int = 8) -> float:
    begun = time.monotonic()
    client.sendall(b"x" * size)
    assert len(received(client, size)) == size
    return time.monotonic() - begun


def received(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := client.recv(1 << 16)):
        data += more
    return data


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_round_trip_takes_as_long_as_set(linked: Linked) -> None:
    link, client = linked(round_trip=TRIP)
    # The first one waits for the handshake, too.
    assert round_trip(client, 1000) >= 2 * TRIP
    assert min(round_trip(client) for _ in range(3)) >= TRIP
    assert (link.up, link.down) == (1024, 1024)
    _, client = linked(bandwidth=8e6)
    # 0.2 s on each way, overlapping.
    assert round_trip(client, 200_000) >= 0.2
    _, client = linked(round_trip=0.01, loss=1.0)
    assert round_trip(client) >= 0.4, "a lost packet comes later"


def test_a_link_is_cut_stalled_and_refuses(linked: Linked) -> None:
    link, client = linked()
    round_trip(client)
    link.cut()
    assert ended(client)
    with connected(link) as again:
        round_trip(again)
        link.stall()
        again.settimeout(0.2)
        again.sendall(b"x")
        with pytest.raises(TimeoutError):
            again.recv(1)
        again.settimeout(60)
        link.restore()
        assert again.recv(1) == b"x"
        link.refuse()
        assert ended(again)
    with pytest.raises(ConnectionRefusedError):
        connected(link)
    link.restore()
    with connected(link) as again:
        round_trip(again)


def test_bytes_are_spoilt_once(linked: Linked) -> None:
    link, client = linked()
    link.spoil(lambda data: b"?" * len(data))
    client.sendall(b"hello")
    assert received(client, 5) == b"?????"
    client.sendall(b"hello")
    assert received(client, 5) == b"hello"
    link.spoil(lambda data: data[: len(data) // 2], hang_up=True)
    client.sendall(b"12345678")
    assert received(client, 100) == b"1234"


def test_new_connections_lead_elsewhere(linked: Linked, echo: int) -> None:
    link, refused = linked(1)
    assert ended(refused)
    link.target = ("127.0.0.1", echo)
    with connected(link) as client:
        round_trip(client)
        link.target = ("127.0.0.1", 1)
        round_trip(client)
