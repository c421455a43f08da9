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

from benchmarks.faults.attacks import ATTACKS, SOCKETS, Attack, answered_long_head, attacked
from benchmarks.faults.processes import Service, gateway_service, serve_service, watched
from benchmarks.faults.rig import NEVER, PROMPT, answer_at, key_of, nothing, scripted, whole
from benchmarks.faults.table import Row
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

Honest = Callable[[Row], bool]
"""Whether an honest client's answer is whole; a row gets its tokens' reasons."""


def client_faults() -> list[Row]:
    """At a gateway, then at a server."""
    # The attacker has no bound of its own.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engine = scripted(stack)
        gateway = gateway_service(stack, [engine.url], Path(folder))

        def honest(row: Row) -> bool:
            return whole(answer_at(gateway.url, None, NEVER, nothing, Breaker()), into=row)

        rows = [
            _row(f"gateway: {name}", gateway, how, PATH, honest, engine)
            for name, how in ATTACKS.items()
        ]
        rows.append(_long_heads(gateway))
        server = serve_service(stack, Path(folder))
        quiet = _chat(server)
        return rows + [
            _row(f"serve: {name}", server, how, CHAT, lambda row: _chat(server) == quiet, None)
            for name, how in ATTACKS.items()
            if how not in SOCKETS
        ]


def _row(
    name: str,
    service: Service,
    how: Callable[[Attack], None],
    path: str,
    honest: Honest,
    engine: ScriptedEngine | None,
) -> Row:
    """Honest answers during the attack; after it the service must be well again."""
    row, beaten, slowest, logged = Row(name), 0, 0.0, service.logged
    with attacked(how, service.port, path, websocket=path == PATH) as attack:
        while row.tries < TRIES and beaten < GIVEN_UP:
            begun = time.monotonic()
            try:
                good = honest(row)
            except Exception as error:
                good = whole(error, into=row)
            slowest = max(slowest, time.monotonic() - begun)
            beaten = 0 if good else beaten + 1
            row.tried(seen=attack.seen > 0, lost=not good)
    row.fault += f" ({attack.seen:,})"
    row.seen = row.tries if attack.seen else 0
    row.watchers = int(engine is not None and not watched(engine))
    row.note = f"slowest answer {slowest:.1f} s, log +{(service.logged - logged) / 1e6:.1f} MB"
    service.until_ready()
    row.processes = service.check()
    return row


def _long_heads(service: Service) -> Row:
    """Twice each, or until it is clear that they are not answered."""
    sizes = f"{min(LONG_HEADS):,} to {max(LONG_HEADS):,} bytes"
    row = Row(f"gateway: upgrades with headers of {sizes}", note="unanswered ones are lost")
    for size in [*LONG_HEADS, *LONG_HEADS]:
        if row.lost < GIVEN_UP:
            row.tried(lost=not answered_long_head(service.port, PATH, size))
    row.processes = service.check()
    return row


def _chat(server: Service) -> str:
    reply = httpx2.post(server.url + CHAT, json=ASKED, timeout=20, trust_env=False)
    return reply.json()["choices"][0]["message"]["content"]


def revocation_faults() -> list[Row]:
    """An open connection of a key that is revoked; what it still gets done is lost."""
    still = Row("a revoked key's open connection", note="open ones are lost")
    fetches = Row("its prefetches", note="prefills by them are lost")
    beside = Row("an honest key's answers beside it")
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engine, file = scripted(stack), Path(folder) / "keys.json"
        secrets = {name: key_of(file, name) for name in ("honest", "revoked")}
        gateway = gateway_service(stack, [engine.url], Path(folder), "--keys", str(file))
        for _ in range(TRIES):
            pushed, closed = _pushed_on(gateway, engine, file, secrets["revoked"])
            answer = answer_at(gateway.url, secrets["honest"], NEVER, nothing, Breaker())
            secrets["revoked"] = key_of(file, "revoked")
            time.sleep(1.2 * keys.CHECK_SECONDS)
            still.tried(lost=not closed)
            beside.tried(lost=not whole(answer))
            fetches.lost += pushed
        fetches.tries = fetches.seen = 20 * TRIES
        beside.processes, beside.watchers = gateway.check(), int(not watched(engine))
    return [still, fetches, beside]


def _pushed_on(
    gateway: Service, engine: ScriptedEngine, file: Path, secret: str
) -> tuple[int, bool]:
    """Prefills of a key after it was revoked, and whether its connection was closed."""
    headers = {"Authorization": f"Bearer {secret}"}
    url, ledger = gateway.url.replace("http", "ws", 1) + PATH, Ledger()
    with connect(url, additional_headers=headers, compression=None) as socket:

        def push(ids: list[int]) -> None:
            at = len(ledger)
            ledger.put(at, ids)
            socket.send(encode(Prefetch(at, ids, ledger.checksum)))

        socket.send(encode(Open(VERSION, tokenizer_fingerprint(ByteTokenizer()))))
        opened = socket.recv(5)
        assert isinstance(opened, bytes)
        assert isinstance(from_gateway(opened), Opened)
        push(list(PROMPT.encode()))
        keys.revoke_key(file, "revoked")
        time.sleep(REVOKED_SECONDS)
        before = engine.prefills
        try:
            for _ in range(20):
                push([97] * 16)
                time.sleep(0.01)
            while True:
                socket.recv(0.2)
        except ConnectionClosed:
            return engine.prefills - before, True
        except TimeoutError:
            return engine.prefills - before, False
