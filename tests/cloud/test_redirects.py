"""No redirect is followed, whoever answers with one: keys and prompts stay where they were sent."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import connect
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.engines.http import Redirected
from edgewise.errors import CloudError, CloudUnavailable
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.routers.constant import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise
from tests.background import Served
from tests.cloud.dialects import DialectServer, Sglang, Vllm, sglang_routes, vllm_routes
from tests.cloud.recording import Recorder
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_text import ScriptedText
from tests.gateway.running import gateway

CLOUDS = [LlamaServer, Vllm, Sglang, GatewayCloud]


class Leading(Served):
    """Answers whatever it is asked with a redirect to a second server, which notes who comes."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__()
        self.status, self.location = 302, ""
        self.asked = 0
        self.came: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
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
def leading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leading]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    made = Leading(authority)
    yield made
    made.close()


def refusals(cloud: CloudModel) -> list[CloudError]:
    """How a check, a push and a consult end."""
    found: list[CloudError] = []
    session = cloud.open(Prompt((1,)))
    session.prefetch([1])
    for work in (
        lambda: cloud.check(ByteTokenizer()),
        lambda: session.ask([1], 1, Sampling(), 20).result(),
    ):
        with pytest.raises(CloudError) as refused:
            work()
        found.append(refused.value)
    session.close()
    cloud.close()
    return found


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https to http"])
@pytest.mark.parametrize("kind", CLOUDS)
def test_no_redirect_is_followed(leading: Leading, kind: Any, secure: bool, status: int) -> None:
    leading.status = status
    url = leading.secure if secure else leading.plain
    for error in refusals(kind(url, key="sk-secret")):
        assert isinstance(error, Redirected)
        assert url in error.message
        assert str(status) in error.message
    assert leading.asked >= 2
    assert leading.came == []


def test_a_certificate_of_nobody_known_is_refused(
    leading: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with closing(LlamaServer(leading.secure, key="sk-secret")) as cloud:
        asked = cloud.open(Prompt((1,))).ask([1], 1, Sampling(), 20)
        with pytest.raises(CloudUnavailable, match="certificate"):
            asked.result()
    assert leading.asked == 0


class Turning(Recorder):
    """Forwards to a cloud that is as it should be, until it `leads` elsewhere."""

    leads = ""

    async def _request(self, request: web.Request) -> web.StreamResponse:
        return self._led(request) or await super()._request(request)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        return self._led(request) or await super()._session(request)

    def _led(self, request: web.Request) -> web.Response | None:
        if not self.leads:
            return None
        self.messages.append(b"led")
        return web.Response(status=307, headers={"Location": self.leads + request.path})


@contextmanager
def engine(name: str) -> Iterator[str]:
    with ExitStack() as stack:
        if name in ("vllm", "sglang"):
            routes = vllm_routes() if name == "vllm" else sglang_routes()
            yield stack.enter_context(closing(DialectServer(routes))).url
        elif name == "chat":
            yield stack.enter_context(closing(ScriptedText("chat"))).url
        else:
            url = stack.enter_context(closing(ScriptedEngine())).url
            yield stack.enter_context(gateway([url])).url if name == "gateway" else url


@pytest.mark.parametrize("name", ["llama-server", "vllm", "sglang", "gateway", "chat"])
def test_one_that_was_proven_leads_nowhere_later(leading: Leading, name: str) -> None:
    """In a prefetch, in a consult, in what is asked beside it, and when it is checked again."""
    with engine(name) as target, closing(Turning(target)) as turning:
        edge = ScriptedEdge(noise())
        cloud = connect(turning.url, edge.tokenizer, key="sk-secret", engine=name)
        with closing(cloud):
            turning.leads = leading.elsewhere
            turning.cut()
            turning.forget()
            decoder = Decoder(edge, router=Constant(1.0), policy=Policy(deadline=20), cloud=cloud)
            prompt = prompt_of(edge.tokenizer, [Message("user", "Hello")])
            assert decoder.generate(prompt, max_tokens=4).usage.cloud_tokens == 0
            with pytest.raises(Redirected):
                cloud.check(edge.tokenizer)
        assert b"led" in turning.messages
    assert leading.came == []
