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

from edgewise.listening import connections as limits
from tests.listening.running import GET, UPGRADE, Here, heard, listener

POST = b"POST /length HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that a test can wait for."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "STALL_SECONDS"):
        monkeypatch.setattr(limits, name, 0.4)


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


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("begun", [b"", b"GET / HTT", POST], ids=["nothing", "a header", "a body"])
def test_those_who_wait_make_room_for_one_who_asks(begun: bytes) -> None:
    with listener(most=20) as here, connections(here, 60, begun) as crowd:
        until(lambda: len(here.open) <= 20)
        assert all(here.probe() for _ in range(30))
        assert len(here.open) <= 20
        if begun != POST:
            # The oldest had to go; with bodies that is up to whose had begun when it was needed.
            assert heard(crowd[0]) == b""


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
        until(lambda: len(here.open) == 3)
        assert here.probe()


def test_a_websocket_that_never_speaks_makes_room() -> None:
    with listener(most=4) as here, connections(here, 4, UPGRADE % b"") as crowd:
        for peer in crowd:
            assert peer.recv(4096).startswith(b"HTTP/1.1 101")
        assert here.probe()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\n", UPGRADE[:40], UPGRADE % b"", POST])
def test_silence_ends(begun: bytes) -> None:
    with listener() as here, connections(here, 5, begun):
        until(lambda: not len(here.open))
        assert here.probe()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\nX: ", b"x"),
        (POST, b"x"),
        (POST.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked"), b"1\r\nx\r\n"),
        (POST.replace(b"/length", b"/nowhere"), b"x"),
        (GET.replace(b"Connection: close\r\n", b"Content-Length: 1000\r\n"), b"x"),
    ],
    ids=["a header", "a body", "pieces of a body", "a body for nobody", "a body of GET"],
)
def test_a_byte_at_a_time_ends(head: bytes, piece: bytes) -> None:
    """However it goes on, and whether or not it was answered meanwhile."""
    with listener() as here, here.connect() as slow:
        slow.sendall(head)
        until(lambda: len(here.open) == 1)
        end = time.monotonic() + 60
        while len(here.open):
            assert time.monotonic() < end
            with contextlib.suppress(OSError):
                slow.sendall(piece)
            time.sleep(0.05)
        assert here.probe()


@pytest.mark.usefixtures("quick")
def test_a_second_request_has_its_time_as_well() -> None:
    with listener() as here, here.connect() as slow:
        slow.sendall(GET.replace(b"Connection: close\r\n", b""))
        found = b""
        while not found.endswith(b"hello"):
            found += slow.recv(4096)
        slow.sendall(b"GET / HT")
        assert heard(slow) == b""


@pytest.mark.usefixtures("quick")
def test_who_does_not_read_does_not_hold_an_answer() -> None:
    with listener() as here, here.connect() as deaf:
        deaf.sendall(GET.replace(b"GET /", b"GET /endless"))
        until(lambda: here.ended == ["answer"])
        until(lambda: not len(here.open))


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
        until(lambda: not len(here.open))


def test_plain_text_at_a_tls_port_ends(certificate: tuple[Path, Path]) -> None:
    with listener(certificate=certificate) as here:
        assert not here.say(GET).startswith(b"HTTP")
        assert secure(here).startswith(b"HTTP/1.1 200")
        until(lambda: not len(here.open))


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


def test_connections_that_are_reset_leave_nothing() -> None:
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
        until(lambda: not len(here.open))
        assert here.probe()
