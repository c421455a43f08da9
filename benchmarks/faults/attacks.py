"""Clients that mean no good: what they do to a server while honest ones ask."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.shared import until
from edgewise.wire.protocol import MAX_FRAME

SILENT = 1100
"""More connections than a process may have files, by what a shell gives it."""

TRICKLES, FLOODS, READERS, OPENERS = 100, 8, 50, 8
OPENS = 10_000
BYTE_SECONDS = 0.05
FILLER = b"X-Filler: " + b"a" * 4000


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

    def again(self, talk: Callable[[socket.socket], None], *, most: float = float("inf")) -> None:
        """Until the end a new connection for each `talk`, whatever the server says to it."""
        while not self.ending.is_set() and self.seen < most:
            made = self.connect()
            if made is None:
                continue
            with contextlib.suppress(OSError):
                talk(made)
            made.close()

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
    for byte in attack.head() + FILLER:
        if attack.ending.wait(BYTE_SECONDS):
            return
        for one in made:
            with contextlib.suppress(OSError):
                one.send(bytes([byte]))
                attack.seen += 1


def flood(attack: Attack) -> None:
    """Headers without an end, as fast as they are taken."""
    line = FILLER[:1010] + b"\r\n"

    def talk(made: socket.socket) -> None:
        made.sendall(attack.head())
        for _ in range(2000):
            made.sendall(line)
            attack.seen += 1
            if attack.ending.is_set():
                return

    _side_by_side(lambda: attack.again(talk), FLOODS)


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

    def talk(made: socket.socket) -> None:
        made.sendall(attack.head() + b"\r\n")
        made.recv(4096)
        made.sendall(body)
        made.recv(4096)
        attack.seen += 1
        attack.ending.wait(0.02)

    attack.again(talk)


def opens(attack: Attack) -> None:
    """Handshakes in a row, hung up at once."""

    def talk(made: socket.socket) -> None:
        made.sendall(attack.head() + b"\r\n")
        made.recv(4096)
        attack.seen += 1

    _side_by_side(lambda: attack.again(talk, most=OPENS), OPENERS)


ATTACKS: dict[str, Callable[[Attack], None]] = {
    f"{SILENT:,} silent connections": silent,
    f"{TRICKLES} connections of one byte per 50 ms": trickle,
    f"{FLOODS} floods of headers": flood,
    f"{READERS} that never read": slow_readers,
    "oversized messages": oversized,
    "handshakes in a row": opens,
}
SOCKETS = (slow_readers, oversized, opens)
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
    until(lambda: attack.seen >= wanted, 20)
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
