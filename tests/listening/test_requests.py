"""Requests beyond the limits, and what is none at all: answered with what fits, and hung up on."""

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
        UPGRADE.replace(b"here", b"here\r\nX: " + b"a" * 9_000) % b"",
        431,
    ),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "garbage": (bytes(range(256)), 400),
    "two lengths": (START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", LEFT)
def test_an_upgrade_that_is_none_is_left(name: str) -> None:
    """uvicorn does not answer these; they hold a place no longer than silence does."""
    with listener() as here:
        assert b"HTTP/1.1 101" not in here.say(LEFT[name])
        assert here.probe()


def test_what_is_within_the_limits_passes() -> None:
    close = b"Connection: close\r\n\r\n"
    with listener() as here:
        assert here.say(START + filler(2, 7000) + close).startswith(b"HTTP/1.1 200")
        assert here.say(START + filler(90, 10) + close).startswith(b"HTTP/1.1 200")
        with here.connect() as device:
            device.sendall(UPGRADE % b"Authorization: %b\r\n" % (b"x" * 8100))
            assert device.recv(4096).startswith(b"HTTP/1.1 101")


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
        for bad in (b"zz\r\n", b"1\r\nab\r\n"):
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
