"""Clients that mean no good: what they do to a server while honest ones ask."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgewise.wire.protocol import MAX_FRAME

SILENT = 1100
"""More connections than a process may have files, by what a shell gives it."""

TRICKLES, FLOODS, READERS = 100, 8, 50
OPENS = 10_000
BYTE_SECONDS = 0.05


class Attack:
    """Connections of an attack. `seen` counts what the server got to feel of it."""

    def __init__(self, port: int, path: str, *, websocket: bool) -> None:
        self.port, self.path, self.websocket = port, path, websocket
        self.seen = 0
        self.ending = threading.Event()
        self._sockets: list[socket.socket] = []

    def connect(self, seconds: float = 2.0) -> socket.socket | None:
        """None where the server takes no more."""
        try:
            made = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        except OSError:
            return None
        self._sockets.append(made)
        return made

    def head(self) -> bytes:
        """An honest request's first lines, without their end."""
        if not self.websocket:
            return f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n".encode()
        return (
            f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n"
        ).encode()

    def close(self) -> None:
        self.ending.set()
        for made in self._sockets:
            made.close()


def silent(attack: Attack) -> None:
    """Connects and says nothing. Those that the server hangs up on come back."""
    while not attack.ending.is_set() and attack.seen < 2 * SILENT:
        if attack.seen >= SILENT:
            attack.ending.wait(0.1)
        attack.seen += attack.connect(0.5) is not None


def trickle(attack: Attack) -> None:
    """A request's head, one byte per 50 ms, over many connections."""
    made = [one for _ in range(TRICKLES) if (one := attack.connect()) is not None]
    head = attack.head() + b"X-Filler: " + b"a" * 4000
    for byte in head:
        if attack.ending.wait(BYTE_SECONDS):
            return
        for one in made:
            with contextlib.suppress(OSError):
                one.send(bytes([byte]))
                attack.seen += 1


def flood(attack: Attack) -> None:
    """Headers without an end, as fast as they are taken."""
    line = b"X-Filler: " + b"a" * 1000 + b"\r\n"

    def one() -> None:
        while not attack.ending.is_set():
            made = attack.connect()
            if made is None:
                continue
            with contextlib.suppress(OSError):
                made.sendall(attack.head())
                for _ in range(2000):
                    made.sendall(line)
                    attack.seen += 1
                    if attack.ending.is_set():
                        break
            made.close()

    _side_by_side(one, FLOODS)


def slow_readers(attack: Attack) -> None:
    """Shake hands and never read."""
    for _ in range(READERS):
        made = attack.connect()
        if made is not None:
            with contextlib.suppress(OSError):
                made.sendall(attack.head() + b"\r\n")
                attack.seen += 1
    attack.ending.wait()


def oversized(attack: Attack) -> None:
    """Messages of more bytes than a frame may have."""
    body = b"\x82\xff" + (MAX_FRAME + 1).to_bytes(8, "big") + bytes(4) + bytes(MAX_FRAME + 1)
    while not attack.ending.is_set():
        made = attack.connect()
        if made is None:
            continue
        with contextlib.suppress(OSError):
            made.sendall(attack.head() + b"\r\n")
            made.recv(4096)
            made.sendall(body)
            made.recv(4096)
            attack.seen += 1
        made.close()
        attack.ending.wait(0.02)


def opens(attack: Attack) -> None:
    """Handshakes in a row, hung up at once."""

    def one() -> None:
        while not attack.ending.is_set() and attack.seen < OPENS:
            made = attack.connect()
            if made is None:
                continue
            with contextlib.suppress(OSError):
                made.sendall(attack.head() + b"\r\n")
                made.recv(4096)
                attack.seen += 1
            made.close()

    _side_by_side(one, 8)


ATTACKS: dict[str, Callable[[Attack], None]] = {
    f"{SILENT:,} silent connections": silent,
    f"{TRICKLES} connections of one byte per 50 ms": trickle,
    f"{FLOODS} floods of headers": flood,
    f"{READERS} that never read": slow_readers,
    "oversized messages": oversized,
    "handshakes in a row": opens,
}
SOCKETS = ("never read", "oversized", "handshakes")
"""Only WebSockets know these."""


@contextmanager
def attacked(
    how: Callable[[Attack], None], port: int, path: str, *, websocket: bool
) -> Iterator[Attack]:
    """Until the block ends; it begins once the attack is felt."""
    attack = Attack(port, path, websocket=websocket)
    thread = threading.Thread(target=how, args=(attack,))
    thread.start()
    wanted = SILENT if how is silent else 1
    end = time.monotonic() + 20
    while attack.seen < wanted and time.monotonic() < end:
        time.sleep(0.02)
    try:
        yield attack
    finally:
        attack.close()
        thread.join()


def answered_long_head(port: int, path: str, size: int, seconds: float = 5.0) -> bool:
    """Whether an upgrade whose headers have `size` bytes is answered, or hung up on."""
    attack = Attack(port, path, websocket=True)
    made = attack.connect()
    if made is None:
        return False
    try:
        made.settimeout(seconds)
        made.sendall(attack.head() + b"X-Filler: " + b"a" * size + b"\r\n\r\n")
        made.recv(4096)
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        attack.close()
    return True


def _side_by_side(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
