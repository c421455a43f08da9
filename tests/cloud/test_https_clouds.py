"""Where keys and prompts travel: a proxy carries encrypted bytes alone, no redirect is followed, no
cookie goes back."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from edgewise.cloud import gateway_link
from edgewise.cloud.adapter.text import TextCloud
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.registry import opened
from edgewise.engines.http import Endpoint, Redirected
from edgewise.errors import CloudError, CloudUnavailable, UsageError
from edgewise.prompts import Message, Prompt
from edgewise.servers.base import Request
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.background import Served

SECRET = "so secret"
CLOUD = "https://cloud.example"


def by_text(url: str, *, key: str | None = None) -> TextCloud:
    return TextCloud(opened("chat", url, key=key, model="scripted"), edge=ByteTokenizer())


BY_IDS = [
    partial(open_engine, engine=name) for name in ("vllm", "gateway", "llama-server", "sglang")
]
CLOUDS = [*BY_IDS[:2], by_text]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """Who certifies clouds here."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


class Proxy:
    """Takes what is sent to it, and lets a CONNECT through to a port of this machine.

    It says `more` before what comes from there.
    """

    def __init__(self, port: int) -> None:
        self.status, self.port = b"200 OK", port
        self.more = self.carried = b""
        self.heads: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:word@127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(
                    target=self._serve, args=self._socket.accept()[:1], daemon=True
                ).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += near.recv(4096)
            self.heads.append(head)
            near.sendall(b"HTTP/1.1 %b\r\n\r\n%b" % (self.status, self.more))
            if not head.startswith(b"CONNECT") or self.status != b"200 OK":
                return
            with socket.create_connection(("127.0.0.1", self.port)) as far:
                back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
                back.start()
                self._carry(near, far)
                back.join()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(4096):
                self.carried += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def context_of(authority: trustme.CA, host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


class Cloud(Served):
    """Notes with which key it is asked, and answers nothing."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__()
        self.came: list[str | None] = []
        context = context_of(authority, "cloud.example")
        self.port = self.serve([web.route("*", "/{p:.*}", self._answer)], ssl=context)

    async def _answer(self, request: web.Request) -> web.Response:
        self.came.append(request.headers.get("Authorization"))
        return web.Response(status=404)


@pytest.fixture
def cloud(authority: trustme.CA) -> Iterator[Cloud]:
    with closing(Cloud(authority)) as made:
        yield made


@pytest.fixture
def proxy(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with closing(Proxy(cloud.port)) as made:
        monkeypatch.setenv("HTTPS_PROXY", made.url)
        yield made


@pytest.fixture(autouse=True)
def tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway is not tried again where the deadline comes before the next pause ends."""
    monkeypatch.setattr(gateway_link, "FIRST_PAUSE", 60.0)


def asked(cloud: CloudModel, *, consults: int = 1, checked: bool = False) -> list[CloudError]:
    """How they end; with a push and a check before them."""
    found: list[CloudError] = []
    with closing(cloud), closing(cloud.open(Prompt((1,), (Message("user", SECRET),)))) as session:
        if checked:
            session.prefetch([1])
            with pytest.raises(CloudError) as caught:
                cloud.check_vocabulary(ByteTokenizer())
            found.append(caught.value)
        for _ in range(consults):
            with pytest.raises(CloudError) as caught:
                session.ask(ConsultRequest([1], 1, 20.0)).result()
            found.append(caught.value)
    return found


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("kind", CLOUDS)
def test_a_proxy_carries_what_it_cannot_read(
    cloud: Cloud, proxy: Proxy, kind: Any, variable: str, monkeypatch: Any, tmp_path: Path
) -> None:
    """Nor is a password of a host read, as by other HTTP clients that read the environment."""
    (tmp_path / "netrc").write_text("machine cloud.example login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setenv(variable, proxy.url)
    asked(kind(CLOUD, key="sk-secret"))
    assert {*cloud.came} == {"Bearer sk-secret"}
    asked(kind(CLOUD))
    assert {*cloud.came} == {"Bearer sk-secret", None}
    assert proxy.carried
    for head in proxy.heads:
        assert head.startswith(b"CONNECT cloud.example:443 ")
        assert b"Basic dXNlcjp3b3Jk" in head
    seen = b"".join(proxy.heads) + proxy.carried
    assert not any(word in seen for word in (b"sk-secret", SECRET.encode(), b"/v1/"))


NEAR = ["http://127.0.0.1:9", "https://127.0.0.1:9", "https://localhost:9", "https://[::1]:9"]
NOT_FOR_IT = [
    *((url, "") for url in (*NEAR, "http://cloud.invalid:9")),
    *(("https://a.cloud.invalid:9", one) for one in ("cloud.invalid", ".invalid", "*")),
]


@pytest.mark.parametrize("kind", CLOUDS)
def test_a_proxy_is_sent_nothing_that_it_could_read_or_need_not_carry(
    proxy: Proxy, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's clouds, those of NO_PROXY, and text that would not be encrypted."""
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    for url, exempt in NOT_FOR_IT:
        monkeypatch.setenv("NO_PROXY", exempt)
        (error,) = asked(kind(url))
        assert isinstance(error, CloudUnavailable)
        assert ("HTTP_PROXY" in str(error)) == (url == "http://cloud.invalid:9")
        assert proxy.heads == [], url


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize(
    "status", [b"407 Proxy Authentication Required", b"502 Bad Gateway", b"", b"?"]
)
def test_a_proxy_that_does_not_carry_is_named(proxy: Proxy, kind: Any, status: bytes) -> None:
    """With its variable, and without its password."""
    proxy.status = status
    if not status:
        proxy.close()
    (error,) = asked(kind(CLOUD))
    assert isinstance(error, CloudUnavailable)
    assert "HTTPS_PROXY" in str(error)
    assert CLOUD in str(error)
    assert "word" not in str(error)
    assert status[:3].decode() in str(error) or status == b"?"


@pytest.mark.parametrize("size", [1, 1000, 1 << 16, (1 << 16) + 1])
def test_what_a_proxy_says_before_the_encryption_is_no_reply(proxy: Proxy, size: int) -> None:
    """Wherever what is read at once ends."""
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    proxy.more = b" " * (size - len(b"HTTP/1.1 200 OK\r\n\r\n")) + forged

    async def health() -> None:
        endpoint = Endpoint(CLOUD)
        try:
            await endpoint.send(Request("/health"))
        finally:
            await endpoint.close()

    with pytest.raises(CloudUnavailable, match="TLS"):
        asyncio.run(health())


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("address", ["socks5://user:word@127.0.0.1:1", "ftp://x", "http://", "a b"])
def test_a_proxy_that_cannot_be_used_is_refused_and_not_gone_around(
    kind: Callable[..., CloudModel], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(UsageError) as caught:
        kind(CLOUD)
    assert "ALL_PROXY" in caught.value.message
    assert "NO_PROXY" in str(caught.value.hint)
    assert "word" not in str(caught.value)
    for elsewhere in ("http://cloud.example", "https://127.0.0.1:1"):
        kind(elsewhere).close()


class Leading(Served):
    """Answers whatever it is asked with a redirect to a second server, which notes who comes."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__()
        self.status, self.asked = 302, 0
        self.came: list[str] = []
        context = context_of(authority, "127.0.0.1")
        self.plain, self.secure = (
            f"{scheme}://127.0.0.1:{self.serve([web.route('*', '/{p:.*}', self._lead)], ssl=how)}"
            for scheme, how in (("http", None), ("https", context))
        )
        self.elsewhere = f"http://127.0.0.1:{self.serve([web.route('*', '/{p:.*}', self._come)])}"

    async def _lead(self, request: web.Request) -> web.Response:
        self.asked += 1
        where = self.elsewhere + request.path
        return web.Response(status=self.status, headers={"Location": where})

    async def _come(self, request: web.Request) -> web.StreamResponse:
        self.came.append(f"{request.path} {request.headers.get('authorization')}")
        if request.headers.get("upgrade"):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            return socket
        return web.json_response({"data": [{"id": "x", "owned_by": "llamacpp"}], "tokens": [1]})


@pytest.fixture
def leading(authority: trustme.CA) -> Iterator[Leading]:
    with closing(Leading(authority)) as made:
        yield made


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https to http"])
@pytest.mark.parametrize("kind", [*BY_IDS, by_text])
def test_no_redirect_is_followed(leading: Leading, kind: Any, secure: bool) -> None:
    url = leading.secure if secure else leading.plain
    for leading.status in (300, 301, 302, 303, 305, 307, 308):
        before = leading.asked
        for error in asked(kind(url, key="sk-secret"), checked=True):
            assert isinstance(error, Redirected)
            assert url in error.message
            assert str(leading.status) in error.message
        assert leading.asked >= before + 2
    assert leading.came == []


def test_an_unknown_certificate_is_refused(
    leading: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    (error,) = asked(LlamaServer(leading.secure, key="sk-secret"))
    assert isinstance(error, CloudUnavailable)
    assert "certificate" in error.message
    assert leading.asked == 0


def test_authorities_are_read_once_and_not_for_http(
    leading: Leading, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: half a second of 45 ms each, where the API's way was looked for."""
    read, default = [], ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: read.append(1) or default())
    for url in (leading.plain, leading.secure, leading.secure):
        asked(LlamaServer(url, key="sk-secret"))
    assert len(read) == 1


@pytest.mark.parametrize("kind", CLOUDS)
def test_no_cookie_goes_back(kind: Callable[[str], CloudModel]) -> None:
    came: list[str | None] = []

    async def named(request: web.Request) -> web.Response:
        came.append(request.headers.get("Cookie"))
        return web.Response(status=404, headers={"Set-Cookie": "device=4711; Path=/"})

    with closing(Served()) as server:
        # Cookies of a number's host are kept by nobody.
        url = f"http://localhost:{server.serve([web.route('*', '/{path:.*}', named)])}"
        asked(kind(url), consults=2)
    assert len(came) > 1
    assert {*came} == {None}
