"""A gateway that pages in browsers may ask: origins, keys as subprotocols, the page's own files."""

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
from websockets.exceptions import InvalidStatus

from edgewise.addresses import bundled
from edgewise.cli.gateway import model_of_page
from edgewise.errors import UsageError
from edgewise.gateway.browser_page import ENGINE, Page, PageModel
from edgewise.gateway.fleet import Fleet
from edgewise.gateway.local import LocalEngine
from edgewise.keys.keys import add_key
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine
from tests.gateway.plain_client import PlainClient
from tests.gateway.processes import GatewayProcess, until
from tests.gateway.running import gateway

APP, HOSTILE = "https://app.example", "https://hostile.example"
LONG = f"bytes={'1' * 5000}-"
MODEL = PageModel("bundled", bundled("edge"), "141b49fbc0933471", bundled("router"), 0.05)


class Served(NamedTuple):
    """A gateway, and its file of keys."""

    url: str
    keys: Path

    def socket(self, key: str | None, *, origin: str | None = None) -> PlainClient:
        """As a page connects; its origin is the gateway's own unless another one is named."""
        return PlainClient(self.url, key, origin=origin or self.url)

    def refusal(self, key: str | None, *, origin: str | None = None) -> int:
        """Its status."""
        with pytest.raises(InvalidStatus) as refused, self.socket(key, origin=origin):
            pass
        return refused.value.response.status_code

    def lets_in(self, key: str) -> bool:
        """By a key in a header."""
        bearer = {"Authorization": f"Bearer {key}"}
        return httpx2.get(f"{self.url}/v1/models", headers=bearer).is_success


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The bundled engine, with a page beside a file that is not the page's."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "secret.py").write_text("secret = 1")
    page, keys = folder / "page", folder / "keys.json"
    (page / ENGINE).parent.mkdir(parents=True)
    (page / ENGINE).write_text("export {};")
    (page / "engine" / "wllama.wasm").write_bytes(b"\0asm")
    (page / "index.html").write_text("<!doctype html><title>page</title>")
    add_key(keys, "first")
    with gateway([LocalEngine()], keys=keys, origins=[APP], page=MODEL, folder=page) as running:
        until(lambda: running.gateway.fleet.up)
        yield Served(running.url, keys)


@pytest.fixture
def key(served: Served, request: pytest.FixtureRequest) -> str:
    """One for each test, of its name."""
    secret = add_key(served.keys, request.node.name[:60])
    until(lambda: served.lets_in(secret), "the key")
    return secret


@pytest.mark.parametrize("origin", [None, APP])
def test_the_own_page_and_named_ones_consult(served: Served, key: str, origin: str | None) -> None:
    ids = [2106, 2113]
    with served.socket(key, origin=origin) as page:
        assert page.socket.subprotocol == "edgewise.v1"
        # The key is never sent back.
        assert page.socket.response is not None
        assert key not in str(page.socket.response.headers)
        page.send([1, 1, MODEL.tokenizer, ""])
        assert page.receive()[0] == 16
        assert page.ask(1, 0, ids, 1, 60_000)[:2] == [17, 1]


def test_a_hostile_page_is_refused(served: Served, key: str) -> None:
    """Whatever key it has, by whatever request. A named page may send its key in a header."""
    assert served.refusal(key, origin=HOSTILE) == 403
    bearer = {"Authorization": f"Bearer {key}"}
    for path in ("/v1/models", "/page/", "/page/config.json", "/page/model.gguf"):
        assert (
            httpx2.get(served.url + path, headers=bearer | {"Origin": HOSTILE}).status_code == 403
        )
    wanted = {
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    hostile, named = (
        httpx2.options(f"{served.url}/v1/models", headers=wanted | {"Origin": origin}).headers
        for origin in (HOSTILE, APP)
    )
    assert "access-control-allow-origin" not in hostile
    assert named["access-control-allow-origin"] == APP
    assert "authorization" in named["access-control-allow-headers"].lower()
    models = httpx2.get(f"{served.url}/v1/models", headers=bearer | {"Origin": APP})
    assert (models.status_code, models.headers["access-control-allow-origin"]) == (200, APP)


def test_a_key_that_is_none(served: Served, key: str) -> None:
    for wrong in (None, "ew-wrong", key[:-1]):
        assert served.refusal(wrong) == 401


@pytest.mark.deep
def test_no_key_is_in_the_log(engine: ScriptedEngine, tmp_path: Path) -> None:
    """Not even where everything is logged, be the key good or wrong."""
    keys = tmp_path / "keys.json"
    good = add_key(keys, "laptop")
    process = GatewayProcess(engine.url, keys, tmp_path / "log", "--log-level", "debug")
    process.start()
    try:
        plain = Served(process.url, keys)
        with plain.socket(good):
            pass
        assert plain.refusal("ew-secretly-wrong") == 401
        # Without --origin no other page is let in.
        assert plain.refusal(good, origin=APP) == 403
        until(lambda: "wrong key" in process.told())
        for secret in (good, "ew-secretly-wrong", "edgewise.key."):
            assert secret not in process.told()
        assert httpx2.get(f"{process.url}/page/config.json").status_code == 404
    finally:
        process.close()


def test_the_page_has_what_it_needs(served: Served) -> None:
    base = f"{served.url}/page/"
    first = httpx2.get(f"{served.url}/", follow_redirects=True)
    assert (str(first.url), first.headers["content-type"][:9]) == (base, "text/html")
    for name, kind in (("wllama.js", "text/javascript"), ("wllama.wasm", "application/wasm")):
        found = httpx2.get(f"{base}engine/{name}").headers["content-type"]
        assert found.partition(";")[0] == kind
    config = httpx2.get(f"{base}config.json").json()
    assert config["gateway"]["keys"] is True
    # Strangers are not told what the engine is called.
    assert (config["gateway"]["model"], config["gateway"]["engine"]) == ("", "cloud")
    content = bundled("edge").read_bytes()
    assert config["model"]["bytes"] == len(content)
    assert config["model"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert config["model"]["tokenizer"] == config["gateway"]["tokenizer"] == MODEL.tokenizer
    model = httpx2.get(base + config["model"]["url"])
    assert (model.content, model.headers["content-type"]) == (content, "application/octet-stream")
    known = {"If-None-Match": model.headers["etag"]}
    assert httpx2.get(base + config["model"]["url"], headers=known).status_code == 304
    for name in config["router"]["files"]:
        own = httpx2.get(base + config["router"]["url"] + name)
        assert own.content == (bundled("router") / name).read_bytes()


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-3", 206, slice(0, 4)),
        ("bytes=4-11", 206, slice(4, 12)),
        ("bytes=4-", 206, slice(4, None)),
        ("bytes=-4", 206, slice(-4, None)),
        ("bytes=4-99999999999", 206, slice(4, None)),
        *((f"bytes={none}", 416, slice(0, 0)) for none in ("99999999999-", "-0", "5-4")),
        *((other, 200, slice(None)) for other in ("bytes=-", "bytes=0-1,4-5", "lines=1-2", LONG)),
    ],
)
def test_a_part_of_the_model(served: Served, asked: str, status: int, part: slice) -> None:
    address, content = f"{served.url}/page/model.gguf", bundled("edge").read_bytes()
    found = httpx2.get(address, headers={"Range": asked})
    assert (found.status_code, found.content) == (status, content[part])
    head = httpx2.head(address, headers={"Range": asked})
    assert (head.status_code, head.content) == (status, b"")
    assert status == 416 or int(head.headers["content-length"]) == len(content[part])
    other = httpx2.get(address, headers={"Range": asked, "If-Range": '"of another"'})
    assert other.content == content


def test_a_download_holds_no_file_open(tmp_path: Path) -> None:
    """Else strangers who read slowly would leave none for the keys, and for devices."""
    page, large = tmp_path / "page", tmp_path / "large.gguf"
    (page / ENGINE).parent.mkdir(parents=True)
    for name in (ENGINE, "index.html"):
        (page / name).write_text("export {};")
    with large.open("wb") as file:
        file.truncate(64 << 20)
    model = MODEL._replace(file=large)

    def descriptors() -> int:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(one) and os.path.samefile(one, large) for one in links)

    with gateway([LocalEngine()], page=model, folder=page) as running, ExitStack() as stack:
        host, _, port = running.url.removeprefix("http://").partition(":")
        for number in range(20):
            peer = stack.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect((host, int(port)))
            part = "Range: bytes=1-\r\n" if number % 2 else ""
            peer.sendall(f"GET /page/model.gguf HTTP/1.1\r\nHost: a\r\n{part}\r\n".encode())
            assert peer.recv(9) == b"HTTP/1.1 "
        assert descriptors() == 1


def test_only_own_files_run_as_code(served: Served) -> None:
    """Threads of WASM need an isolated page; nothing inline, nothing from elsewhere."""
    for path in ("", "config.json", "model.gguf", "engine/wllama.js"):
        headers = httpx2.get(f"{served.url}/page/{path}").headers
        rules = headers["content-security-policy"].split(";")
        policy = dict(rule.strip().split(" ", 1) for rule in rules)
        assert policy["default-src"] == "'none'"
        for rule in ("script-src", "worker-src", "connect-src"):
            allowed = set(policy[rule].split())
            assert "'self'" in allowed
            assert allowed <= {"'self'", "blob:", "'wasm-unsafe-eval'"}
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-embedder-policy"] == "require-corp"
        assert headers["x-content-type-options"] == "nosniff"


OTHERS = (
    "../secret.py %2e%2e/secret.py ..%2fsecret.py %2e%2e%2fsecret.py engine/../../secret.py "
    "..%5csecret.py //etc/passwd %2fetc%2fpasswd router/trained_on.txt router/../../secret.py %00"
)


@pytest.mark.parametrize("path", OTHERS.split())
def test_no_other_file_is_served(served: Served, path: str) -> None:
    """Sent as it is: a client would tidy it up."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 30) as raw:
        raw.sendall(f"GET /page/{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        with raw.makefile("rb") as reply:
            assert reply.readline().split()[1] in (b"400", b"404")


@pytest.mark.anyio
async def test_a_page_that_cannot_work_is_refused(tmp_path: Path) -> None:
    """Without its engine, or with a model of another vocabulary than the gateway's."""
    fleet = Fleet([PlainEngine()], concurrency=1, queue=1)
    with pytest.raises(UsageError):
        Page(MODEL, fleet, keys=False, folder=tmp_path)
    (tmp_path / ENGINE).parent.mkdir()
    (tmp_path / ENGINE).touch()
    page = Page(MODEL, fleet, keys=False, folder=tmp_path)
    await fleet.start()
    with pytest.raises(UsageError) as refused:
        page.require_same_vocabulary()
    assert refused.value.setting == "page_model"
    await fleet.close()


def test_nobody_is_told_where_a_model_lies(served: Served, tmp_path: Path) -> None:
    folder = served.keys.with_name("page")
    with gateway([LocalEngine()], page=MODEL, folder=folder) as running:
        for path in ("/home/alice/large.gguf", "C:\\alice\\large.gguf", "large.gguf"):
            running.gateway.fleet.model = path
            told = httpx2.get(f"{running.url}/page/config.json")
            assert told.json()["gateway"]["model"] == "large.gguf"
            assert "alice" not in told.text
    file = shutil.copy(bundled("edge"), tmp_path / "small.gguf")
    model = model_of_page(str(file), page=True)
    assert model is not None
    assert (model.file, "small" in model.name) == (file, True)
    assert str(tmp_path) not in model.name
