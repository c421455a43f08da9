"""Every fault between device and engine, at every token: `python -m benchmarks.faults`.

A scripted edge model asks a scripted engine for every token through a real gateway over real
sockets; at one consult of the answer something breaks. An answer is lost when it does not end, or
is not what was to be written. Prints Markdown; exit code 1 where an answer was lost.
"""

import argparse
import asyncio
import gc
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import aiohttp
import structlog
from rich.console import Console
from rich.progress import track

from benchmarks.pocket_routers import line
from edgewise.cloud.gateway import GatewayCloud
from edgewise.gateway import keys
from edgewise.gateway.key_file import read_keys
from edgewise.loop.breaker import Breaker
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, replying
from edgewise.testing.scripted_engine import Misbehaviour, ScriptedEngine
from edgewise.wire.protocol import MAX_FRAME, PATH
from tests.gateway.running import Running, gateway

PROMPT, TEXT = "sky: ", "The sky is blue."
DEADLINE = 0.6
OPENS = 10_000
ROUNDS = 3


class Rig:
    """Device, link, gateway and engine, each of which can fail."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.engine_fault: Callable[[int], Misbehaviour | None] = lambda number: None
        self.engine = ScriptedEngine(script=_written, fault=lambda n: self.engine_fault(n))
        stack.callback(self.engine.close)
        self.keys = folder / "keys.json"
        self.secret = keys.add_key(
            self.keys, "device", asks_per_second=0, tokens_per_day=0, sessions=0
        )
        self._gateways = ExitStack()
        stack.callback(self._gateways.close)
        self.running = self._start(None)
        self.link = Link("127.0.0.1", _port(self.running.url))
        stack.callback(self.link.close)

    def restart(self) -> None:
        """Kill the gateway, with everything it knows, and start another in its place."""
        port = _port(self.running.url)
        self._gateways.close()
        self.running = self._start(port)

    def answer(self, before: Callable[[int], None]) -> Answer:
        """One answer, every token asked for; `before` is told each consult's number."""
        cloud = GatewayCloud(self.link.url, key=self.secret)
        edge = ScriptedEdge(replying(TEXT, prompt=PROMPT))
        try:
            cloud.check(edge.tokenizer)
            router = _Telling(before)
            policy = Policy(threshold=0.5, deadline=DEADLINE)
            breaker = Breaker(clock=lambda: 0.0)
            decoder = Decoder(edge, router=router, policy=policy, cloud=cloud, breaker=breaker)
            return decoder.generate(edge.tokenizer.encode_prompt(PROMPT), max_tokens=64)
        finally:
            cloud.close()

    def _start(self, port: int | None) -> Running:
        made = gateway([self.engine.url], keys=self.keys, port=port)
        return self._gateways.enter_context(made)


class _Telling(Constant):
    """Always asks, and says so before."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__(1.0)
        self._before, self._count = before, 0

    def score(self, step: object) -> float:
        self._before(self._count)
        self._count += 1
        return 1.0


Break = Callable[[Rig], None]


def _engine(fault: Misbehaviour) -> Break:
    def apply(rig: Rig) -> None:
        at = rig.engine.asked
        rig.engine_fault = lambda number: fault if number == at else None

    return apply


def _engine_killed(rig: Rig) -> None:
    rig.engine.stop()


def _wrong_hash(rig: Rig) -> None:
    for session in rig.running.gateway.sessions.all():
        session.ledger.put(0, [0] * len(session.ledger.ids))


def _expired(rig: Rig) -> None:
    for session in rig.running.gateway.sessions.all():
        rig.running.gateway.sessions.forget(session)
    rig.link.cut()


def _revoked(rig: Rig) -> None:
    keys.revoke_key(rig.keys, "device")
    time.sleep(keys.CHECK_SECONDS * 1.2)


def _restored(rig: Rig) -> None:
    """What every fault leaves as it found it."""
    rig.engine_fault = lambda number: None
    if not rig.engine.listening:
        rig.engine.start()
    rig.link.restore()
    if not read_keys(rig.keys):
        rig.secret = keys.add_key(
            rig.keys, "device", asks_per_second=0, tokens_per_day=0, sessions=0
        )
        time.sleep(keys.CHECK_SECONDS * 1.2)
    while not rig.running.gateway.fleet.up:
        time.sleep(0.05)


FAULTS: dict[str, Break] = {
    "gateway killed and restarted": Rig.restart,
    "engine killed": _engine_killed,
    "engine hangs": _engine("hang"),
    "engine resets the connection": _engine("reset"),
    "engine answers garbage": _engine("garbage"),
    "TCP reset": lambda rig: rig.link.cut(),
    "link gone": lambda rig: rig.link.refuse(),
    "half-open connection": lambda rig: rig.link.stall(),
    "garbage frame": lambda rig: rig.link.spoil(lambda data: b"\xff" * len(data)),
    "truncated frame": lambda rig: rig.link.truncate(),
    "wrong hash": _wrong_hash,
    "expired session": _expired,
    "revoked key": _revoked,
}
QUICK = ("gateway killed and restarted", "engine resets the connection", "TCP reset")
"""Those that run at every position in CI."""


class Outcome(NamedTuple):
    """Of one answer: whether it is whole, and who stood in why."""

    whole: bool
    cloud: int
    reasons: tuple[str, ...]
    seconds: float


@contextmanager
def rig() -> Iterator[Rig]:
    """Everything, running."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        yield Rig(stack, Path(folder))


def answered(rig: Rig, fault: Break, position: int) -> Outcome:
    """An answer with a fault before its consult `position`."""
    begun = time.monotonic()
    answer = rig.answer(lambda number: fault(rig) if number == position else None)
    _restored(rig)
    whole = answer.text == TEXT and answer.finish_reason == "stop"
    reasons = {str(t.reason) for t in answer.tokens} - {"critical"}
    return Outcome(
        whole, answer.usage.cloud_tokens, tuple(sorted(reasons)), time.monotonic() - begun
    )


def positions() -> range:
    """Every token of the answer, its end included."""
    return range(len(TEXT) + 1)


def hostile(rig: Rig) -> dict[str, bool]:
    """Clients that misbehave: whether the gateway still answers an honest one afterwards."""
    found: dict[str, bool] = {}
    for name, attack in (
        ("slow reader", _slow_reader),
        ("oversized frame", _oversized),
        (f"{OPENS:,} opens", _opens),
    ):
        asyncio.run(attack(rig))
        found[name] = answered(rig, lambda rig: None, 0).whole
    return found


async def _slow_reader(rig: Rig) -> None:
    """Shakes hands and never reads."""
    held: list[socket.socket] = []
    for _ in range(50):
        held.append(socket.create_connection(("127.0.0.1", _port(rig.running.url))))
        held[-1].sendall(_handshake(rig.secret))
    await asyncio.sleep(0.5)
    for connection in held:
        connection.close()


async def _oversized(rig: Rig) -> None:
    headers = {"Authorization": f"Bearer {rig.secret}"}
    async with aiohttp.ClientSession() as http:
        for _ in range(20):
            async with http.ws_connect(rig.running.url + PATH, headers=headers) as link:
                await link.send_bytes(b"\x00" * (MAX_FRAME + 1))
                await link.receive(5)


async def _opens(rig: Rig) -> None:
    """Handshakes in a row, never said `Open`, hung up; sixteen at a time."""
    headers = {"Authorization": f"Bearer {rig.secret}"}
    async with aiohttp.ClientSession() as http:

        async def some(count: int) -> None:
            for _ in range(count):
                link = await http.ws_connect(rig.running.url + PATH, headers=headers)
                await link.close()

        await asyncio.gather(*(some(OPENS // 16) for _ in range(16)))


def _handshake(secret: str) -> bytes:
    return (
        f"GET {PATH} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {secret}\r\n\r\n"
    ).encode()


def _written(ids: Sequence[int]) -> int:
    """The engine writes the same text as the edge."""
    offset = len(ids) - len(PROMPT)
    return TEXT.encode()[offset] if 0 <= offset < len(TEXT) else EOS


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _memory() -> float:
    """Resident memory of this process, gateway and all, MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    lines = line(["fault", "answers", "lost", "cloud tokens an answer", "reasons"], head=True)
    lost = 0
    with rig() as made:
        before = _memory()
        for name, fault in track(FAULTS.items(), console=Console(stderr=True), transient=True):
            found = [answered(made, fault, position) for position in positions()]
            gone = sum(not outcome.whole for outcome in found)
            lost += gone
            mean = sum(outcome.cloud for outcome in found) / len(found)
            reasons = sorted({reason for outcome in found for reason in outcome.reasons})
            lines += line([name, str(len(found)), str(gone), f"{mean:.1f}", ", ".join(reasons)])
        between, after = _memory(), list[int]()
        for _ in range(ROUNDS):
            for name, whole in hostile(made).items():
                lost += not whole
                if not after:
                    lines += line([name, f"{ROUNDS}", str(int(not whole)), "", ""])
            after.append(round(_memory()))
    print("\n".join(lines))
    print(f"\n{len(TEXT) + 1} tokens an answer. Resident memory of gateway, engine and device:")
    print(
        f"{before:.0f} MB before, {between:.0f} after the faults; after each of {ROUNDS} rounds of"
    )
    print(f"the last three {', '.join(map(str, after))}.")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
