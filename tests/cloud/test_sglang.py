"""SGLang's dialect against replies written from its source (0.5.23): no SGLang ran here."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from edgewise.errors import CloudProtocolError, CloudRejected, VocabularyMismatch
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cloud.dialects import Sglang

REPLY: dict[str, Any] = {
    "text": "sky",
    "output_ids": [115, 107],
    "meta_info": {
        "id": "rid",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 2,
        "e2e_latency": 0.0123,
        "output_token_logprobs": [[-0.25, 115, None], [-0.5, 107, None]],
        "output_top_logprobs": [
            [[-0.25, 115, None], [-2.0, 98, None]],
            [[-0.5, 107, None], [-1.5, 99, None]],
        ],
    },
}


def written(n: int, prompt: int) -> dict[str, Any]:
    """The first `n` tokens of `REPLY`, after `prompt` ids."""
    meta = dict(REPLY["meta_info"], prompt_tokens=prompt, cached_tokens=prompt - 1)
    for name in ("output_token_logprobs", "output_top_logprobs"):
        meta[name] = meta[name][:n]
    return {"output_ids": REPLY["output_ids"][:n], "meta_info": meta}


class Server(ThreadingHTTPServer):
    """Answers as SGLang does; `reply` is what `/generate` says, `asked` what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply: Any = REPLY
        self.status = 200
        self.knows_salt = True
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        model = {"id": "qwen", "object": "model", "owned_by": "sglang", "max_model_len": 32768}
        self._say(200, {"object": "list", "data": [model]} if "models" in self.path else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/detokenize":
            return self._say(404, {"detail": "Not Found"})
        if self.path == "/tokenize":
            ids = ByteTokenizer().encode(body["prompt"])
            return self._say(200, {"tokens": ids, "count": len(ids), "max_model_len": 32768})
        self.server.asked.append(body)
        self.server.headers.append(dict(self.headers))
        if self.server.knows_salt and not isinstance(body.get("cache_salt", ""), str):
            return self._say(422, {"detail": "Input should be a valid string"})
        reply = self.server.reply
        if reply is REPLY:
            reply = written(body["sampling_params"]["max_new_tokens"], len(body["input_ids"]))
        return self._say(self.server.status, reply)

    def _say(self, status: int, described: Any) -> None:
        body = json.dumps(described).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, args=(0.02,)).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def cloud(server: Server) -> Iterator[Sglang]:
    made = Sglang(f"http://127.0.0.1:{server.server_address[1]}", key="sk")
    yield made
    made.close()


def test_a_consult(server: Server, cloud: Sglang) -> None:
    cloud.check(ByteTokenizer())
    server.asked.clear()
    completion = cloud.open(Prompt((1, 2))).ask([1, 2, 3], 2, Sampling(), 30).result()
    (asked,) = server.asked
    assert asked["input_ids"] == [1, 2, 3]
    assert asked["sampling_params"]["max_new_tokens"] == 2
    assert asked["sampling_params"]["temperature"] == 0
    assert asked["routing_key"] == server.headers[-1]["X-SMG-Routing-Key"]
    assert completion.ids == (115, 107)
    assert completion.logprobs == (-0.25, -0.5)
    assert [[c.id for c in top] for top in completion.top] == [[115, 98], [107, 99]]
    assert (completion.cached, completion.computed, completion.stopped) == (2, 1, False)
    assert completion.engine_seconds == pytest.approx(0.0123)


def test_what_it_can_do(server: Server, cloud: Sglang) -> None:
    cloud.check(ByteTokenizer())
    able = cloud.engine.abilities
    assert (able.engine, able.model, able.meter, able.salt) == ("SGLang", "qwen", True, True)
    assert (able.top, able.priority, able.tokenizer) == (2, "none", True)


def test_one_that_takes_anything_for_a_salt_has_none(server: Server, cloud: Sglang) -> None:
    """Before July 2026 `/generate` ignored the field without a word."""
    server.knows_salt = False
    cloud.check(ByteTokenizer())
    assert not cloud.engine.abilities.salt


def test_sampling_and_the_end(server: Server, cloud: Sglang) -> None:
    server.reply = {
        "output_ids": [256],
        "meta_info": {"finish_reason": {"type": "stop", "matched": 256}, "prompt_tokens": 2},
    }
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=3)
    completion = cloud.open(Prompt((1,))).ask([1, 2], 4, sampling, 30).result()
    asked = server.asked[-1]["sampling_params"]
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.9, -1)
    assert completion.stopped
    assert completion.ids[0] == 256
    assert (completion.cached, completion.computed) == (None, None)


@pytest.mark.parametrize("reply", [{}, {"text": "sky"}, [REPLY], {"output_ids": "x"}])
def test_another_reply_is_a_sentence(server: Server, cloud: Sglang, reply: Any) -> None:
    server.reply = reply
    with pytest.raises(CloudProtocolError, match="SGLang"):
        cloud.open(Prompt((1,))).ask([1], 1, Sampling(), 30).result()


def test_an_engine_that_takes_no_ids_is_refused(server: Server, cloud: Sglang) -> None:
    server.status, server.reply = 400, {"error": {"message": "input_ids is not supported"}}
    with pytest.raises(CloudRejected, match="does not take and return token ids"):
        cloud.check(ByteTokenizer())


def test_another_vocabulary(cloud: Sglang) -> None:
    class Other(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [1]

    with pytest.raises(VocabularyMismatch):
        cloud.check(Other())
