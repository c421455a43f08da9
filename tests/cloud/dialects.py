"""Servers that speak vLLM's and SGLang's dialects, with replies written from their sources."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from edgewise.cloud.engine import EngineCloud
from edgewise.engines.sglang import SglangEngine
from edgewise.engines.vllm import VllmEngine
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.background import Served

Route = tuple[str, str]
Reply = Callable[[Any], tuple[int, Any]]
"""From a request's JSON body to a status and what is said (bytes as they are)."""


class Vllm(EngineCloud):
    """A vLLM server at a URL."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        super().__init__(VllmEngine(url, key=key))


class Sglang(EngineCloud):
    """An SGLang server at a URL."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        super().__init__(SglangEngine(url, key=key))


class DialectServer(Served):
    """Says what `routes` say, on 127.0.0.1 in a thread of its own, each after `seconds`.

    `asked` holds path and body of every request, `spans` when it began and ended (monotonic).
    """

    def __init__(self, routes: dict[Route, Reply], *, seconds: float = 0.0) -> None:
        self.routes, self.seconds = routes, seconds
        self.asked: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[tuple[float, float]] = []
        super().__init__()
        self.url = f"http://127.0.0.1:{self.serve([web.route('*', '/{path:.*}', self._answer)])}"

    @property
    def rounds(self) -> int:
        """How many requests were one after the other, where the others overlapped them."""
        count, end = 0, 0.0
        for begun, ended in sorted(self.spans):
            if begun >= end:
                count += 1
                end = ended
            end = min(end, ended)
        return count

    def bodies(self, path: str) -> list[Any]:
        """What was asked there."""
        return [body for asked, body in self.asked if asked == path]

    async def _answer(self, request: web.Request) -> web.Response:
        begun = time.monotonic()
        data = await request.read()
        body = msgspec.json.decode(data) if data else None
        self.asked.append((request.path, body))
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.seconds)
        route = self.routes.get((request.method, request.path), lambda _: (404, b"no such path"))
        status, said = route(body)
        self.spans.append((begun, time.monotonic()))
        raw = said if isinstance(said, bytes) else msgspec.json.encode(said)
        return web.Response(status=status, body=raw, content_type="application/json")


@contextmanager
def serving(routes: dict[Route, Reply], *, seconds: float = 0.0) -> Iterator[DialectServer]:
    """A server until the block ends."""
    server = DialectServer(routes, seconds=seconds)
    try:
        yield server
    finally:
        server.close()


def said(reply: Any, status: int = 200) -> Reply:
    """The same whatever is asked."""
    return lambda body: (status, reply)


def knowing_salt(reply: Reply) -> Reply:
    """As `reply`, but a salt that is no text is declined, as by all who know what a salt is."""

    def checked(body: Any) -> tuple[int, Any]:
        if isinstance(body.get("cache_salt", ""), str):
            return reply(body)
        return 400, {"message": "Parameter 'cache_salt' must be a non-empty string."}

    return checked


def _models(owner: str) -> Reply:
    return said({"object": "list", "data": [{"id": "qwen", "owned_by": owner}]})


def _tokens(body: Any) -> tuple[int, Any]:
    return 200, {"tokens": ByteTokenizer().encode(body["prompt"]), "max_model_len": 32768}


def completed(
    ids: list[int], *, finish: str = "length", total: int = 8, cached: int | None = None
) -> dict[str, Any]:
    """What vLLM's `/v1/completions` says, asked for token ids."""
    names = [f"token_id:{token}" for token in ids]
    logprobs = {
        "tokens": names,
        "token_logprobs": [-0.5] * len(ids),
        "top_logprobs": [{name: -0.5, "token_id:7": -2.0} for name in names],
    }
    details = None if cached is None else {"cached_tokens": cached}
    choice = {"text": "", "logprobs": logprobs, "finish_reason": finish}
    usage = {"prompt_tokens": total, "prompt_tokens_details": details}
    return {"choices": [choice], "usage": usage}


def _complete(body: Any) -> tuple[int, Any]:
    total = len(body["prompt"])
    return 200, completed([97], total=total, cached=total - 1)


def vllm_routes() -> dict[Route, Reply]:
    """vLLM with its tokenizer."""
    return {
        ("GET", "/health"): said({}),
        ("GET", "/v1/models"): _models("vllm"),
        ("POST", "/tokenize"): _tokens,
        ("POST", "/v1/completions"): knowing_salt(_complete),
    }


def sglang_routes() -> dict[Route, Reply]:
    """SGLang with its tokenizer."""
    return {
        ("GET", "/health"): said({}),
        ("GET", "/v1/models"): _models("sglang"),
        ("POST", "/tokenize"): _tokens,
        ("POST", "/generate"): knowing_salt(_generate),
    }


def _generate(body: Any) -> tuple[int, Any]:
    """After SGLang 0.5.23."""
    total = len(body["input_ids"])
    meta = {
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": total,
        "cached_tokens": total - 1,
        "e2e_latency": 0.0123,
        "output_token_logprobs": [[-0.5, 97, None]],
        "output_top_logprobs": [[[-0.5, 97, None], [-2.0, 7, None]]],
    }
    return 200, {"output_ids": [97], "meta_info": meta}
