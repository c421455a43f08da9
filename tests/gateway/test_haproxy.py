"""Two gateways behind one address, by the haproxy and the configuration that `deploy/` ships."""

import os
import re
import shutil
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import numpy as np
import pytest
import trustme

from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import EdgeModel, Floats
from edgewise.keys.keys import add_key
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import SIZE, ScriptedEdge
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.processes import GatewayProcess, lasting_port, metric, until
from tests.listening.running import heard
from tests.programs import run
from tests.server_process import server_process

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
FOUND = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
HAPROXY = FOUND or "haproxy"

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        FOUND is None and os.environ.get("TEST_SERVERS") != "required",
        reason="needs Debian's haproxy; .ci/run installs it",
    ),
]

DEVICES, TOKENS = 8, 50
CONNECTIONS, REQUESTS, REFUSALS = 256, 1000, 60
"""Of an address: what is held at a time, asked in 10 s, and refused in a minute."""
FAULTS = {"unavailable", "timeout", "refused", "rejected", "protocol", "circuit_open"}


class Address(NamedTuple):
    """One address, the gateways behind it, a key for both, and HAProxy's own numbers."""

    url: str
    a: GatewayProcess
    b: GatewayProcess
    secret: str
    numbers: str

    def up(self, name: str) -> bool:
        """Whether HAProxy sends new sessions to a gateway."""
        return bool(
            metric(self.numbers, "haproxy_server_status", proxy="gateways", server=name, state="UP")
        )

    def device(self, edge: EdgeModel) -> GatewayCloud:
        """Its cloud, with a session opened."""
        made = GatewayCloud(self.url, key=self.secret)
        made.check_vocabulary(edge.tokenizer)
        return made


@contextmanager
def address(engine: str, folder: Path) -> Iterator[Address]:
    """The shipped configuration over two gateways, with TLS; the process trusts its authority."""
    authority = trustme.CA()
    pem = folder / "edgewise.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    keys = folder / "keys.json"
    secret = add_key(keys, "devices", consults_per_second=0, tokens_per_day=0, sessions=0)
    port, numbers = lasting_port(), lasting_port()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        trusted = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(trusted))
        patch.setenv("SSL_CERT_FILE", str(trusted))
        a, b = (GatewayProcess(engine, keys, folder / f"{name}.log") for name in "ab")
        for gateway in (a, b):
            stack.callback(gateway.close)
            gateway.begin()
        for gateway in (a, b):
            gateway.require_ready()
        environment = {
            "EDGEWISE_BIND": f"127.0.0.1:{port}",
            "EDGEWISE_PEM": str(pem),
            "EDGEWISE_GATEWAY_A": f"127.0.0.1:{a.port}",
            "EDGEWISE_GATEWAY_B": f"127.0.0.1:{b.port}",
            "EDGEWISE_NUMBERS": f"127.0.0.1:{numbers}",
        }
        shown = f"http://127.0.0.1:{numbers}/metrics"
        command, log = [HAPROXY, "-db", "-f", str(CONFIGURATION)], folder / "haproxy.log"
        stack.enter_context(server_process(command, shown, log=log, variables=environment))
        yield Address(f"https://localhost:{port}", a, b, secret, shown)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """Every id it writes follows from the whole prefix, so that a wrong prefix shows."""
    with closing(ScriptedEngine(seconds=0.01)) as made:
        yield made


@pytest.fixture
def one(engine: ScriptedEngine, tmp_path: Path) -> Iterator[Address]:
    with address(engine.url, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """For tests that leave both gateways as they are, each from addresses of its own."""
    folder = tmp_path_factory.mktemp("shared")
    with closing(ScriptedEngine(seconds=0.01)) as engine, address(engine.url, folder) as made:
        yield made


def digits(ids: Sequence[int]) -> Floats:
    """What the edge writes: digits, where the engine writes letters."""
    logits = np.zeros(SIZE, np.float32)
    logits[48 + len(ids) % 10] = 20.0
    return logits


@contextmanager
def devices(one: Address) -> Iterator[Callable[[], list[Future[Answer]]]]:
    """Several, connected; begins an answer of each, side by side."""
    edges = [ScriptedEdge(digits) for _ in range(DEVICES)]
    with ExitStack() as stack, ThreadPoolExecutor(DEVICES) as pool:
        clouds = [stack.enter_context(closing(one.device(edge))) for edge in edges]
        each = list(zip(edges, clouds, map(prompt, range(DEVICES)), strict=True))
        yield lambda: [pool.submit(answer, *several, TOKENS) for several in each]


def answer(edge: EdgeModel, cloud: GatewayCloud, ids: Sequence[int], most: int) -> Answer:
    """Every token asked for; a breaker that never pauses shows each fault."""
    policy, breaker = Policy(threshold=0.5, deadline=5.0), Breaker(clock=lambda: 0.0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud, breaker=breaker)
    return decoder.generate(list(ids), max_tokens=most)


def prompt(number: int) -> list[int]:
    return list(f"device {number}: ".encode())


def require_whole(begun: Sequence[Future[Answer]]) -> None:
    """Every answer ended, and every token is the cloud's for this very prefix or has a reason."""
    for number, one in enumerate(future.result(60) for future in begun):
        assert one.finish_reason == "length"
        assert len(one.tokens) == TOKENS
        ids = prompt(number)
        for token in one.tokens:
            if token.source == "cloud":
                assert token.id == reply_to(ids)
            else:
                assert token.id == 48 + len(ids) % 10
                assert token.reason in FAULTS
            ids.append(token.id)


def test_a_gateway_is_killed_and_comes_back_and_the_other_drains(
    one: Address, engine: ScriptedEngine
) -> None:
    """No answer is lost."""
    with devices(one) as begin:
        moved = one.a.count("connections")
        assert moved > 0
        assert moved + one.b.count("connections") == DEVICES
        begun = begin()
        until(lambda: engine.asked > DEVICES * TOKENS // 4, "the middle of the answers")
        one.a.kill()
        assert engine.asked < DEVICES * TOKENS
        require_whole(begun)
        # Those that moved were sent whole again: the other gateway knew nobody's session.
        assert one.b.count("opens_total", outcome="new") == DEVICES
        assert one.b.count("opens_total", outcome="resumed") == 0
        assert sum('"how": "new"' in line for line in one.b.told().splitlines()) == DEVICES
        until(lambda: not one.up("a"), "haproxy's notice of the dead gateway")
        assert one.b.count("connections") == DEVICES
        one.a.start()
        until(lambda: one.up("a"), "haproxy's notice of the new gateway")
        asked, begun = engine.asked, begin()
        until(lambda: engine.asked > asked + DEVICES * TOKENS // 4, "the middle of the answers")
        one.b.drain()
        require_whole(begun)
        assert one.b.ended() == 0
        assert one.a.count("opens_total", outcome="new") == DEVICES
        assert one.a.count("connections") == DEVICES


def test_the_address_is_well_while_a_gateway_is(one: Address) -> None:
    allowed = {"Authorization": f"Bearer {one.secret}"}
    with asking("127.0.0.1") as http:

        def status(path: str, headers: dict[str, str] | None = None) -> int:
            return http.get(one.url + path, headers=headers).status_code

        assert status("/health") == 200
        assert [status(path) for path in ("/metrics", "/ready", "/")] == [404] * 3
        assert status("/v1/models") == 401
        assert status("/v1/models", allowed) == 200
        one.a.kill()
        assert status("/v1/models", allowed) == 200
        one.b.kill()
        until(lambda: status("/health") == 503, "the address's illness")


def test_the_gateway_knows_who_came_and_not_who_they_say_they_are(shared: Address) -> None:
    with asking("127.0.0.2") as http:
        forged = {"X-Forwarded-For": "192.0.2.1"}
        assert http.get(f"{shared.url}/v1/models", headers=forged).status_code == 401
    assert '"peer": "127.0.0.2"' in shared.a.told() + shared.b.told()


def test_strangers_keep_nobody_out_of_the_address(shared: Address) -> None:
    """1,100 from several, silent, in half a TLS handshake, or with a body at a byte a second."""
    port, hello = port_of(shared), bytes.fromhex("1603010200010001fc0303")
    slow = b"POST /detokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"
    with ExitStack() as stack:
        for number in range(1100):
            peer = connection(port, f"127.0.1.{number % 5}")
            stack.callback(peer.close)
            if number % 3 == 1:
                peer.sendall(hello)
            elif number % 20 == 2:
                secure = stack.enter_context(closing(secured(peer)))
                secure.sendall(slow)
        with devices(shared) as begin:
            require_whole(begin())
        # None of them has reached a gateway.
        assert shared.a.count("connections") + shared.b.count("connections") <= DEVICES


def port_of(one: Address) -> int:
    return int(one.url.rpartition(":")[2])


def connection(port: int, source: str) -> socket.socket:
    """A connection that comes from this address of the machine."""
    return socket.create_connection(("127.0.0.1", port), 60, source_address=(source, 0))


def secured(peer: socket.socket) -> ssl.SSLSocket:
    return ssl.create_default_context().wrap_socket(peer, server_hostname="localhost")


def asking(source: str) -> httpx2.Client:
    """A client at this address of the machine, with a connection for each request."""
    trust, none = ssl.create_default_context(), httpx2.Limits(max_keepalive_connections=0)
    made = httpx2.HTTPTransport(verify=trust, local_address=source, limits=none)
    return httpx2.Client(transport=made, timeout=60)


def test_an_address_holds_so_many_connections(shared: Address) -> None:
    """Of which half are in a TLS handshake; others come in beside it."""
    port = port_of(shared)

    def is_taken() -> bool:
        """Asked by a handshake's first message alone: Python leaves a socket open that is closed
        while it is wrapped."""
        hello, trust = ssl.MemoryBIO(), ssl.create_default_context()
        with pytest.raises(ssl.SSLWantReadError):
            trust.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
        try:
            with connection(port, "127.0.0.2") as peer:
                peer.sendall(hello.read())
                return bool(peer.recv(1))
        except OSError:
            return False

    with ExitStack() as stack:
        assert is_taken()
        held = [stack.enter_context(connection(port, "127.0.0.2")) for _ in range(CONNECTIONS)]
        for peer in held[::2]:
            stack.enter_context(closing(secured(peer)))
        assert not is_taken()
        with asking("127.0.0.3") as http:
            assert http.get(f"{shared.url}/v1/models").status_code == 401


def test_an_address_that_tries_keys_is_refused(shared: Address) -> None:
    with asking("127.0.0.4") as stranger, asking("127.0.0.5") as other:
        tried = [stranger.get(f"{shared.url}/v1/models").status_code for _ in range(REFUSALS + 10)]
        assert tried[: REFUSALS + 1] == [401] * (REFUSALS + 1)
        assert tried[-1] == 429
        allowed = {"Authorization": f"Bearer {shared.secret}"}
        assert stranger.get(f"{shared.url}/v1/models", headers=allowed).status_code == 429
        assert other.get(f"{shared.url}/v1/models", headers=allowed).status_code == 200


def test_an_address_sends_so_many_requests(shared: Address) -> None:
    with secured(connection(port_of(shared), "127.0.0.6")) as peer:
        ask = b"GET /nothing HTTP/1.1\r\nHost: a\r\n"
        peer.sendall((ask + b"\r\n") * (REQUESTS + 50) + ask + b"Connection: close\r\n\r\n")
        told = heard(peer)
    found = Counter(re.findall(rb"^HTTP/1.1 (\d+)", told, re.MULTILINE))
    assert found == {b"404": REQUESTS, b"429": 51}


def test_the_shipped_file_is_well_formed(tmp_path: Path) -> None:
    """Alone, and beside the file of Debian's package, whose global part it needs there."""
    pem = tmp_path / "edgewise.pem"
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
    alone, debians = ["-f", str(CONFIGURATION)], Path("/etc/haproxy/haproxy.cfg")
    for before in ([], ["-f", str(debians)] if debians.exists() else []):
        assert "WARNING" not in run(HAPROXY, "-c", *before, *alone, EDGEWISE_PEM=str(pem)).stderr
