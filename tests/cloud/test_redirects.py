"""No redirect is followed, whoever answers with one: keys and prompts stay where they were sent."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from edgewise.cloud.adapter.text import TextCloud
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.registry import opened
from edgewise.engines.http import Redirected
from edgewise.errors import CloudError, CloudUnavailable
from edgewise.prompts import Message, Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.background import Served


def by_text(url: str, *, key: str) -> TextCloud:
    return TextCloud(opened("chat", url, key=key), edge=ByteTokenizer())


BY_IDS = ["llama-server", "vllm", "sglang", "gateway"]
CLOUDS = [*(partial(open_engine, engine=name) for name in BY_IDS), by_text]


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
    session = cloud.open(Prompt((1,), (Message("user", "so?"),)))
    session.prefetch([1])
    for work in (
        lambda: cloud.check_vocabulary(ByteTokenizer()),
        lambda: session.ask(ConsultRequest([1], 1, 20)).result(),
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
        asked = cloud.open(Prompt((1,))).ask(ConsultRequest([1], 1, 20))
        with pytest.raises(CloudUnavailable, match="certificate"):
            asked.result()
    assert leading.asked == 0
