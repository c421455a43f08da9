"""Hostile clients at a gateway and at `edgewise serve`; revoked keys. Honest ones ask meanwhile."""

import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks.faults.attacks import ATTACKS, SOCKETS, answered_long_head, attacked
from benchmarks.faults.processes import Service, gateway_service, serve_service, watched
from benchmarks.faults.rig import PROMPT, answer_at, whole, written
from benchmarks.faults.table import Row, told
from edgewise.keys import keys
from edgewise.loop.health import Breaker
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.wire.protocol import (
    PATH,
    VERSION,
    Ledger,
    Open,
    Opened,
    Prefetch,
    encode,
    from_gateway,
    tokenizer_fingerprint,
)
from tests.doubles.scripted_engine import ScriptedEngine

TRIES = 16
GIVEN_UP = 3
"""Honest answers lost in a row, after which an attack has won and is not watched any longer."""

LONG_HEADS = (4_000, 8_000, 8_193, 9_000, 16_385, 65_536, 70_000, 300_000)
CHAT = "/v1/chat/completions"
ASKED = {"model": "edgewise", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
REVOKED_SECONDS = 1.5
"""Within which a revoked key has stopped working, open connections included."""

Honest = Callable[[], tuple[bool, tuple[str, ...]]]
"""Whether an honest client's answer is whole, and its tokens' reasons."""


def client_faults() -> list[Row]:
    """At a gateway, then at a server."""
    _take_files()
    with TemporaryDirectory() as folder:
        return [*_at_gateway(Path(folder)), *_at_serve(Path(folder))]


def _at_gateway(folder: Path) -> list[Row]:
    with ExitStack() as stack:
        engine = ScriptedEngine(script=written)
        stack.callback(engine.close)
        gateway = gateway_service([engine.url], folder)
        stack.callback(gateway.close)

        def honest() -> tuple[bool, tuple[str, ...]]:
            answer = answer_at(gateway.url, None, lambda number: None, Breaker())
            return whole(answer), tuple(str(token.reason) for token in answer.tokens)

        rows = [
            _row(f"gateway: {name}", gateway, how, PATH, honest, engine)
            for name, how in ATTACKS.items()
        ]
        return [*rows, _long_heads("gateway", gateway, PATH)]


def _at_serve(folder: Path) -> list[Row]:
    with ExitStack() as stack:
        server = serve_service(folder)
        stack.callback(server.close)
        quiet = _chat(server)

        def honest() -> tuple[bool, tuple[str, ...]]:
            return _chat(server) == quiet, ()

        return [
            _row(f"serve: {name}", server, how, CHAT, honest, None)
            for name, how in ATTACKS.items()
            if not any(word in name for word in SOCKETS)
        ]


def _row(
    name: str,
    service: Service,
    how: Callable[..., None],
    path: str,
    honest: Honest,
    engine: ScriptedEngine | None,
) -> Row:
    """Honest answers during the attack; after it the service must be well again."""
    lost = tries = beaten = 0
    reasons, slowest, logged = set[str](), 0.0, service.logged
    with attacked(how, service.port, path, websocket=path == PATH) as attack:
        while tries < TRIES and beaten < GIVEN_UP:
            tries += 1
            begun = time.monotonic()
            try:
                good, said = honest()
            except Exception as error:
                # What kept it from an answer is for the row to say.
                good, said = False, (type(error).__name__,)
            slowest = max(slowest, time.monotonic() - begun)
            lost += not good
            beaten = 0 if good else beaten + 1
            reasons |= set(said)
    blind = engine is not None and not watched(engine)
    note = f"slowest answer {slowest:.1f} s, log +{(service.logged - logged) / 1e6:.1f} MB"
    service.until_ready()
    seen = tries if attack.seen else 0
    return Row(
        f"{name} ({attack.seen:,})", tries, seen, lost, service.check(), int(blind),
        "; ".join(filter(None, [note, told(reasons)])),
    )  # fmt: skip


def _long_heads(name: str, service: Service, path: str) -> Row:
    """Twice each, or until it is clear that they are not answered."""
    tries = lost = 0
    for size in [*LONG_HEADS, *LONG_HEADS]:
        if lost < GIVEN_UP:
            tries += 1
            lost += not answered_long_head(service.port, path, size)
    what = f"{name}: upgrades with headers of {min(LONG_HEADS):,} to {max(LONG_HEADS):,} bytes"
    return Row(what, tries, tries, lost, service.check(), note="unanswered ones are lost")


def _chat(server: Service) -> str:
    reply = httpx2.post(server.url + CHAT, json=ASKED, timeout=20, trust_env=False)
    return reply.json()["choices"][0]["message"]["content"]


def revocation_faults() -> list[Row]:
    """An open connection of a key that is revoked; what it still gets done is lost."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engine = ScriptedEngine(script=written)
        stack.callback(engine.close)
        file = Path(folder) / "keys.json"
        secrets = {name: _key(file, name) for name in ("honest", "revoked")}
        gateway = gateway_service([engine.url], Path(folder), "--keys", str(file))
        stack.callback(gateway.close)
        tries = seen = prefills = open_still = lost = 0
        for _ in range(TRIES):
            pushed, closed = _pushed_on(gateway, engine, file, secrets["revoked"])
            answer = answer_at(gateway.url, secrets["honest"], lambda number: None, Breaker())
            secrets["revoked"] = _key(file, "revoked")
            time.sleep(1.2 * keys.CHECK_SECONDS)
            tries += 1
            seen += 1
            prefills += pushed
            open_still += not closed
            lost += not whole(answer)
        dead, blind = gateway.check(), int(not watched(engine))
    return [
        Row("a revoked key's open connection", tries, seen, open_still, note="open ones are lost"),
        Row("its prefetches", 20 * tries, 20 * seen, prefills, note="prefills by them are lost"),
        Row("an honest key's answers beside it", tries, seen, lost, dead, blind),
    ]


def _pushed_on(
    gateway: Service, engine: ScriptedEngine, file: Path, secret: str
) -> tuple[int, bool]:
    """Prefills of a key after it was revoked, and whether its connection was closed."""
    headers = {"Authorization": f"Bearer {secret}"}
    url, ledger = gateway.url.replace("http", "ws", 1) + PATH, Ledger()
    with connect(url, additional_headers=headers, compression=None) as socket:
        socket.send(encode(Open(VERSION, tokenizer_fingerprint(ByteTokenizer()))))
        told_of = socket.recv(5)
        assert isinstance(told_of, bytes)
        assert isinstance(from_gateway(told_of), Opened)
        ledger.put(0, list(PROMPT.encode()))
        socket.send(encode(Prefetch(0, ledger.ids, ledger.checksum)))
        keys.revoke_key(file, "revoked")
        time.sleep(REVOKED_SECONDS)
        before = engine.prefills
        try:
            for _ in range(20):
                at = len(ledger.ids)
                ledger.put(at, [97] * 16)
                socket.send(encode(Prefetch(at, ledger.ids[at:], ledger.checksum)))
                time.sleep(0.01)
            while True:
                socket.recv(0.2)
        except ConnectionClosed:
            return engine.prefills - before, True
        except TimeoutError:
            return engine.prefills - before, False


def _key(file: Path, name: str) -> str:
    return keys.add_key(file, name, consults_per_second=0, tokens_per_day=0, sessions=0)


def _take_files() -> None:
    """The attacker has no bound of its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
