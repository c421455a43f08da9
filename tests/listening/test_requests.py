"""Requests beyond the limits, and what is none at all: answered with what fits, and hung up on."""

import contextlib

import pytest

from tests.listening.running import GET, UPGRADE, heard, listener

START = b"GET / HTTP/1.1\r\nHost: here\r\n"


def filler(lines: int, size: int) -> bytes:
    return b"".join(b"X-%d: %b\r\n" % (number, b"x" * size) for number in range(lines))


REFUSED = {
    "a long line, unfinished": (START + b"X: " + b"x" * 20_000, 400),
    "a flood": (START + filler(50_000, 20), 400),
    "a long address, unfinished": (b"GET /" + b"x" * 20_000, 400),
    "an upgrade without a key": ((UPGRADE % b"").replace(b"Sec-WebSocket-Key", b"X-Key"), 400),
    "an upgrade of another version": ((UPGRADE % b"").replace(b"Version: 13", b"Version: 1"), 400),
    "an upgrade with a long header": (
        (UPGRADE % b"").replace(b"Host: here", b"Host: here\r\nX: " + b"a" * 9_000),
        431,
    ),
    "an absurd method": (
        b"%b / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n" % (b"A" * 100),
        405,
    ),
    "an unknown method": (b"FROB / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n", 405),
    "no method": (b" / HTTP/1.1\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "garbage": (bytes(range(256)), 400),
    "two lengths": (START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "a length below nothing": (START + b"Content-Length: -1\r\n\r\n", 400),
    "a space before the colon": (START + b"X : y\r\n\r\n", 400),
    "two ways to say how long": (
        START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "pieces in the old version": (
        b"POST /length HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "another encoding": (START + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "a folded header": (START + b"X: a\r\n b\r\n\r\n", 400),
    "a header folded by a tab": (START + b"X: a\r\n\tContent-Length: 5\r\n\r\n", 400),
    "lines without CR": (START.replace(b"\r", b"") + b"\n", 400),
    "one line without CR": (START + b"X: a\nContent-Length: 5\r\n\r\n", 400),
    "an end without CR": (START + b"\n", 400),
    "a null byte": (START + b"X: a\0b\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_answered_and_left(name: str, caplog: pytest.LogCaptureFixture) -> None:
    data, status = REFUSED[name]
    with listener() as here:
        told = here.say(data)
        assert here.probe()
    assert told.startswith(b"HTTP/1.1 %d " % status) or (name == "a flood" and not told), told[:200]
    assert told.count(b"HTTP/1.1") <= 1
    assert not [record for record in caplog.records if record.exc_info]


LEFT = {
    "a long upgrade": UPGRADE % filler(1, 9000),
    "an upgrade beyond 8,192 bytes": UPGRADE % b"Authorization: %b\r\n" % (b"x" * 8180),
    "an upgrade of many headers": UPGRADE % filler(150, 1),
    "an upgrade by POST": (UPGRADE % b"").replace(b"GET", b"POST"),
    "an upgrade with a body": UPGRADE % b"Content-Length: 3\r\n" + b"abc",
    "an upgrade in pieces": UPGRADE % b"Transfer-Encoding: chunked\r\n",
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that a test can wait for."""
    monkeypatch.setattr("edgewise.listening.connections.WAIT_SECONDS", 0.4)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", LEFT)
def test_an_upgrade_that_is_none_is_left(name: str) -> None:
    """uvicorn does not answer these; they hold a place no longer than silence does."""
    with listener() as here:
        assert b"HTTP/1.1 101" not in here.say(LEFT[name])
        assert here.probe()


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: here\r\n"
HIDDEN = {
    "behind a length": POST + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "behind pieces": POST + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    "behind an end without CR": POST + b"X: y\n\n",
    "behind a folded length": POST + b"X: y\r\n Content-Length: %d\r\n\r\n",
}


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("before", [b"", GET.replace(b"Connection: close\r\n", b"")])
def test_no_request_hides_in_another(name: str, before: bytes, pieces: int) -> None:
    """One that a proxy in front takes for a body, or for part of a header: alone, behind another
    request, in one piece or a few bytes at a time."""
    head = HIDDEN[name].replace(b"%d", b"%d" % len(SMUGGLED))
    data = before + head + SMUGGLED
    with listener() as here, here.connect() as peer:
        for at in range(0, len(data), pieces):
            with contextlib.suppress(OSError):
                peer.sendall(data[at : at + pieces])
        told = heard(peer)
    assert told.count(b"HTTP/1.1 400") == 1
    assert told.count(b"HTTP/1.1 200") == bool(before)
    assert b"404" not in told


def test_what_is_within_the_limits_passes() -> None:
    close = b"Connection: close\r\n\r\n"
    with listener() as here:
        assert here.say(START + filler(2, 7000) + close).startswith(b"HTTP/1.1 200")
        assert here.say(START + filler(90, 10) + close).startswith(b"HTTP/1.1 200")
        with here.connect() as device:
            device.sendall(UPGRADE % b"Authorization: %b\r\n" % (b"x" * 8100))
            assert device.recv(4096).startswith(b"HTTP/1.1 101")


def test_the_old_version_is_answered_and_left() -> None:
    with listener() as here:
        told = here.say(b"GET / HTTP/1.0\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200")
    assert told.endswith(b"hello")


def test_garbage_after_a_request_does_not_spoil_its_answer() -> None:
    kept = GET.replace(b"Connection: close\r\n", b"")
    with listener() as here:
        told = here.say(kept + b"\x00\x01\x02\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 200")
        assert told.count(b"HTTP/1.1 400") == 1
        many = here.say(kept * 20 + GET)
        assert many.count(b"HTTP/1.1 200") == 21


def test_garbage_in_a_body_that_is_being_answered(caplog: pytest.LogCaptureFixture) -> None:
    chunked = b"POST /%b HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listener() as here:
        for bad in (b"zz\r\n", b"0\r\nX: y\r\n\r\n", b"1\r\nab\r\n"):
            assert here.say(chunked % b"length" + bad) == b""
        with here.connect() as peer:
            peer.sendall(chunked % b"nowhere")
            peer.sendall(b"zz\r\n")
            assert heard(peer)[:10] in (b"", b"HTTP/1.1 4")
        assert here.probe()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("frame", [b"\xff" * 20, b"\x83\x80\0\0\0\0", b"\x81\x02hi"])
def test_bad_frames_end_a_websocket(frame: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with listener() as here:
        told = here.say(UPGRADE % b"" + frame)
        with here.connect() as device:
            device.sendall(UPGRADE % b"")
            assert device.recv(4096).startswith(b"HTTP/1.1 101")
            device.sendall(frame)
            assert device.recv(4096)[:1] == b"\x88"
        assert here.probe()
    assert told[:13] in (b"", b"HTTP/1.1 101 ")
    assert not [record for record in caplog.records if record.exc_info]
