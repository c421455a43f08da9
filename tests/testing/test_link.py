"""The link emulator, with a client and a server of its own."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from edgewise.testing.link import Link, Quality

TRIP = 0.1


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    # Closing alone does not wake up accept.
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def round_trip(client: socket.socket, size: int = 8) -> float:
    begun = time.monotonic()
    client.sendall(b"x" * size)
    left = size
    while left:
        got = client.recv(1 << 16)
        assert got
        left -= len(got)
    return time.monotonic() - begun


def test_a_round_trip_takes_as_long_as_told(echo: int) -> None:
    link = Link("127.0.0.1", echo, Quality(round_trip=TRIP))
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        first = round_trip(client)
        later = [round_trip(client) for _ in range(3)]
    link.close()
    # The first one waits for the handshake, too.
    assert first >= 2 * TRIP
    assert min(later) >= TRIP


def test_bandwidth_bounds_what_gets_through(echo: int) -> None:
    link = Link("127.0.0.1", echo, Quality(bandwidth=8e6))
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        seconds = round_trip(client, 200_000)
    link.close()
    # 0.2 s on each way, overlapping.
    assert seconds >= 0.2


def test_a_lost_packet_comes_later(echo: int) -> None:
    link = Link("127.0.0.1", echo, Quality(round_trip=0.01, loss=1.0))
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        assert round_trip(client) >= 0.4
    link.close()


def ended(client: socket.socket) -> bool:
    client.settimeout(60)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_link_that_was_cut_takes_new_connections(echo: int) -> None:
    link = Link("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client)
        link.cut()
        assert ended(client)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client)
    link.close()


def test_nothing_gets_through_a_stalled_link_until_it_is_restored(echo: int) -> None:
    link = Link("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client)
        link.stall()
        client.settimeout(0.2)
        client.sendall(b"x")
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(60)
        link.restore()
        assert client.recv(1) == b"x"
    link.close()


def test_bytes_are_counted_each_way(echo: int) -> None:
    link = Link("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client, 1000)
    link.close()
    assert (link.up, link.down) == (1000, 1000)


def test_jitter_delays_and_never_reorders(echo: int) -> None:
    link = Link("127.0.0.1", echo, Quality(jitter=0.02))
    sent = bytes(range(200))
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        client.settimeout(60)
        for value in sent:
            client.sendall(bytes([value]))
        got = b""
        while len(got) < len(sent):
            got += client.recv(1 << 16)
    link.close()
    assert got == sent


def test_a_link_that_refuses_takes_nobody_until_it_is_restored(echo: int) -> None:
    link = Link("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client)
        link.refuse()
        assert ended(client)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", link.port))
    link.restore()
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client)
    link.close()


def test_bytes_are_spoilt_once(echo: int) -> None:
    link = Link("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        link.spoil(lambda data: b"?" * len(data))
        client.sendall(b"hello")
        assert client.recv(100) == b"?????"
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
    link.close()


def test_half_of_it_arrives_and_then_the_end(echo: int) -> None:
    link = Link("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        link.truncate()
        client.sendall(b"12345678")
        got = b""
        while data := client.recv(100):
            got += data
    link.close()
    assert got == b"1234"


def test_a_target_that_is_not_there_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    link = Link("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        assert ended(client)
    link.close()


def test_new_connections_lead_elsewhere(echo: int) -> None:
    link = Link("127.0.0.1", 1)
    with socket.create_connection(("127.0.0.1", link.port)) as refused:
        assert ended(refused)
    link.move("127.0.0.1", echo)
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        round_trip(client)
        link.move("127.0.0.1", 1)
        round_trip(client)
    link.close()
