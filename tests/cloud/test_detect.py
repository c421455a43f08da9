"""`--cloud URL` finds out what answers there."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway import GatewayCloud
from edgewise.engines.registry import UnknownEngine
from edgewise.errors import CloudUnavailable, UsageError
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway


class _Handler(BaseHTTPRequestHandler):
    models: Any = None

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        body = json.dumps(self.models).encode()
        self.send_response(200 if self.models is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,)).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    _Handler.models = None


@pytest.mark.parametrize(
    ("owner", "dialect"),
    [
        ("llamacpp", "llama-server"),
        ("vllm", "vLLM"),
        ("sglang", "SGLang"),
    ],
)
def test_an_engine_says_what_it_is(served: str, owner: str, dialect: str) -> None:
    _Handler.models = {"data": [{"id": "m", "owned_by": owner}]}
    cloud = open_engine(served)
    assert isinstance(cloud, EngineCloud)
    assert cloud.engine.dialect == dialect
    cloud.close()


def test_a_gateway_says_so() -> None:
    engine = ScriptedEngine()
    with gateway([engine.url]) as running:
        cloud = open_engine(running.url)
        assert isinstance(cloud, GatewayCloud)
        cloud.close()
    engine.close()


def test_an_override_asks_nobody(served: str) -> None:
    cloud = open_engine(served, engine="vllm")
    assert isinstance(cloud, EngineCloud)
    assert cloud.engine.dialect == "vLLM"
    cloud.close()


@pytest.mark.parametrize(
    ("models", "error", "problem"),
    [
        (None, UnknownEngine, "vllm"),
        ({"hello": 1}, UnknownEngine, "vllm"),
        ({"data": []}, CloudUnavailable, "127.0.0.1"),
        ({"data": [{"id": "gpt", "owned_by": "someone"}]}, UnknownEngine, "someone"),
        ({"data": [{"id": "gpt"}]}, UnknownEngine, "vllm"),
    ],
)
def test_anything_else_is_refused(
    served: str, models: Any, error: type[Exception], problem: str
) -> None:
    _Handler.models = models
    with pytest.raises(error, match=problem):
        open_engine(served)


def test_addresses_that_are_none() -> None:
    with pytest.raises(UsageError):
        open_engine("ftp://x")
    with pytest.raises(CloudUnavailable):
        open_engine("http://127.0.0.1:9")
