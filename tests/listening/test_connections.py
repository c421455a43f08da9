"""Whoever connects and does not get on with it: closed, and never in the way of one who does."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme

from edgewise.listening import seats
from edgewise.listening.seats import Stage
from tests.listening.running import GET, UPGRADE, Here, heard, listener

POST = b"POST /length HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that a test can wait for."""
    monkeypatch.setitem(seats.SECONDS, Stage.SILENT, 0.4)
    monkeypatch.setitem(seats.SECONDS, Stage.READING, 0.4)
    monkeypatch.setattr(seats, "STALL_SECONDS", 0.4)
    monkeypatch.setattr(seats, "CLOSE_SECONDS", 0.4)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "c.pem")
    issued.private_key_pem.write_to_path(folder / "k.pem")
    return folder / "c.pem", folder / "k.pem"


@contextmanager
def connections(here: Here, count: int, begun: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made = [stack.enter_context(here.connect()) for _ in range(count)]
        for peer in made:
            with contextlib.suppress(OSError):
                peer.sendall(begun)
        yield made


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("begun", [b"", b"GET / HTT", POST], ids=["nothing", "a header", "a body"])
@pytest.mark.parametrize("limits", [{"most": 20}, {"most": 1000, "per_peer": 20}])
def test_those_who_wait_make_room_for_one_who_asks(begun: bytes, limits: dict[str, int]) -> None:
    with listener(**limits) as here, connections(here, 60, begun) as crowd:
        until(lambda: len(here.seats) <= 20)
        assert all(here.probe() for _ in range(30))
        assert len(here.seats) <= 20
        if begun != POST:
            # The oldest had to go; with bodies that is up to whose had begun when it was needed.
            assert heard(crowd[0]) == b""


def test_an_idle_connection_makes_room_too() -> None:
    asked = GET.replace(b"Connection: close\r\n", b"")
    with listener(most=20) as here, connections(here, 20, asked) as crowd:
        for peer in crowd:
            assert peer.recv(4096).startswith(b"HTTP/1.1 200")
        until(lambda: len(here.seats) == 20)
        assert here.probe()


def test_where_all_are_busy_the_newcomer_is_sent_away() -> None:
    with listener(most=4) as here, connections(here, 4, UPGRADE % b"") as crowd:
        for peer in crowd:
            assert peer.recv(4096).startswith(b"HTTP/1.1 101")
            peer.sendall(b"\x81\x82\0\0\0\0hi")
            assert peer.recv(4096) == b"\x81\x02hi"
        assert here.say(GET) == b""
        crowd[0].sendall(b"\x81\x82\0\0\0\0ho")
        assert crowd[0].recv(4096) == b"\x81\x02ho"
        crowd.pop().close()
        until(lambda: len(here.seats) == 3)
        assert here.probe()


def test_a_websocket_that_never_speaks_makes_room() -> None:
    with listener(most=4) as here, connections(here, 4, UPGRADE % b"") as crowd:
        for peer in crowd:
            assert peer.recv(4096).startswith(b"HTTP/1.1 101")
        assert here.probe()


@pytest.mark.usefixtures("quick")
def test_silence_ends() -> None:
    with listener() as here, connections(here, 5):
        until(lambda: not len(here.seats))
    with listener() as here, here.connect() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        told = heard(slow)
    assert told.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"connection: close" in told


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: here\r\nX: ", POST])
def test_a_byte_at_a_time_ends(head: bytes) -> None:
    with listener() as here, here.connect() as slow:
        slow.sendall(head)
        slow.setblocking(False)
        told = b""
        end = time.monotonic() + 60
        while not told:
            assert time.monotonic() < end
            with contextlib.suppress(BlockingIOError):
                told = slow.recv(4096)
            with contextlib.suppress(OSError):
                slow.send(b"x")
            time.sleep(0.05)
        assert told.startswith(b"HTTP/1.1 408 ")
        until(lambda: not len(here.seats))
        assert here.probe()
    assert here.ended == (["body"] if head == POST else [])


@pytest.mark.usefixtures("quick")
def test_a_second_request_has_its_time_as_well() -> None:
    with listener() as here, here.connect() as slow:
        slow.sendall(GET.replace(b"Connection: close\r\n", b""))
        found = b""
        while not found.endswith(b"hello"):
            found += slow.recv(4096)
        slow.sendall(b"GET / HT")
        assert heard(slow).startswith(b"HTTP/1.1 408 ")


@pytest.mark.usefixtures("quick")
def test_who_does_not_read_does_not_hold_an_answer() -> None:
    with listener() as here, here.connect() as deaf:
        deaf.sendall(GET.replace(b"GET /", b"GET /endless"))
        until(lambda: here.ended == ["answer"])
        until(lambda: not len(here.seats))


@pytest.mark.usefixtures("quick")
def test_a_websocket_that_reads_no_pongs_ends() -> None:
    """Pings are answered at once, so they would pile up here."""
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    with listener() as here, here.connect() as deaf:
        deaf.sendall(UPGRADE % b"")
        assert deaf.recv(4096).startswith(b"HTTP/1.1 101")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                deaf.sendall(ping * 1000)
        until(lambda: not len(here.seats))


@pytest.mark.parametrize(
    "frames",
    [b"\x89\x80" + bytes(4), b"\x8a\x80" + bytes(4), b"\x00\x80" + bytes(4)],
    ids=["pings", "pongs", "empty pieces of a message"],
)
def test_frames_that_bring_nothing_end_soon(frames: bytes) -> None:
    """Found by an attack: eight devices that only pinged kept an honest one waiting for 6 s."""
    with listener() as here, here.connect() as peer:
        peer.sendall(UPGRADE % b"")
        assert peer.recv(4096).startswith(b"HTTP/1.1 101")
        # The first piece of a message; control frames may come between pieces.
        peer.sendall(b"\x01\x80" + bytes(4))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(frames * 2000)
        until(lambda: not len(here.seats))


def test_a_read_full_of_messages_ends_the_connection() -> None:
    with listener() as here, here.connect() as peer:
        peer.sendall(UPGRADE % b"")
        assert peer.recv(4096).startswith(b"HTTP/1.1 101")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall((b"\x81\x80" + bytes(4)) * 200_000)
        until(lambda: not len(here.seats))


def test_pings_now_and_then_and_long_messages_in_pieces_are_answered() -> None:
    ping, word = b"\x89\x80" + bytes(4), b"\x02\xfe\x04\x00" + bytes(4 + 1024)
    piece = b"\x00\xfe\x04\x00" + bytes(4 + 1024)
    text = b"\x01" + word[1:]
    with listener() as here, here.connect() as peer:
        peer.sendall(UPGRADE % b"")
        assert peer.recv(4096).startswith(b"HTTP/1.1 101")
        peer.sendall(ping * 50 + text + piece * 200 + b"\x80\x80" + bytes(4))
        wanted = 201 * 1024
        came = b""
        while len(came) < wanted:
            came += peer.recv(1 << 16)
        assert came.startswith(b"\x8a\x00" * 50)


@pytest.mark.usefixtures("quick")
def test_half_a_handshake_ends(certificate: tuple[Path, Path]) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    with (
        listener(certificate=certificate) as here,
        connections(here, 5),
        connections(here, 5, hello),
    ):
        until(lambda: len(here.seats) > 0)
        until(lambda: not len(here.seats))


def test_half_a_handshake_makes_room(certificate: tuple[Path, Path]) -> None:
    with listener(most=20, certificate=certificate) as here, connections(here, 60):
        until(lambda: len(here.seats) == 20)
        for _ in range(30):
            assert secure(here).startswith(b"HTTP/1.1 200")


def test_plain_text_at_a_tls_port_ends(certificate: tuple[Path, Path]) -> None:
    with listener(certificate=certificate) as here:
        assert not here.say(GET).startswith(b"HTTP")
        assert secure(here).startswith(b"HTTP/1.1 200")
        until(lambda: not len(here.seats))


def test_the_request_may_come_with_the_handshake(certificate: tuple[Path, Path]) -> None:
    """A client's last handshake message and its request in one segment, as TLS 1.3 has it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(incoming, outgoing)
    with listener(certificate=certificate) as here, here.connect() as peer:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.sendall(outgoing.read())
                incoming.write(peer.recv(1 << 16))
        client.write(GET)
        peer.sendall(outgoing.read())
        found = b""
        while b"hello" not in found:
            try:
                found += client.read(1 << 16)
            except ssl.SSLWantReadError:
                incoming.write(peer.recv(1 << 16))
    assert found.startswith(b"HTTP/1.1 200")


def secure(here: Here) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with here.connect() as raw, context.wrap_socket(raw) as peer:
        peer.sendall(GET)
        return heard(peer)


def test_connections_that_are_reset_leave_no_seat() -> None:
    with listener() as here:

        def come_and_go() -> None:
            for _ in range(50):
                with here.connect() as peer:
                    linger = struct.pack("ii", 1, 0)
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    peer.sendall(POST)

        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: not len(here.seats))
        assert here.probe()
