"""The large model behind a llama-server: `POST /completion`, token ids both ways.

One asyncio thread per model does the I/O over keep-alive connections; callers get
`concurrent.futures.Future`s.
"""

import asyncio
import math
import ssl
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from edgewise.cloud.base import Prefix, Verdict
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.errors import (
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    UsageError,
    VocabularyMismatch,
)
from edgewise.events import Candidate
from edgewise.sampling import Sampling

TOP = 5
PROBE_SECONDS = 10.0
_MAX_REPLY = 4 << 20
_IDLE_SECONDS = 4.0
_T = TypeVar("_T")
_FIELDS = ["tokens", "completion_probabilities", "timings", "stop_type"]


class _TopLogprob(msgspec.Struct):
    id: int
    logprob: float | None = None


class _Probability(msgspec.Struct):
    id: int
    logprob: float | None = None
    top_logprobs: list[_TopLogprob] = []


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


class _Completion(msgspec.Struct):
    tokens: list[int]
    completion_probabilities: list[_Probability] = []
    timings: _Timings | None = None
    stop_type: str = "limit"


class _Tokens(msgspec.Struct):
    tokens: list[int]


class LlamaServer:
    """Implements `CloudModel`. `https` is verified; the key travels as a bearer token."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no http:// or https:// address of a cloud engine.")
        if parts.username or parts.password:
            raise UsageError("Put the cloud key into EDGEWISE_CLOUD_KEY, not into the address.")
        self.name = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._loop = asyncio.new_event_loop()
        self._http: aiohttp.ClientSession | None = None
        self._eos_ids = frozenset([0])
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="cloud", daemon=True)
        self._thread.start()

    def open(self, ids: Sequence[int]) -> "LlamaServerSession":
        return LlamaServerSession(self, ids)

    def check(self, tokenizer: Tokenizer) -> str:
        """Tokenise fixed strings at the engine and compare the ids."""
        self.submit(self._get("/health"), PROBE_SECONDS).result()
        for text in PROBES:
            body = {"content": text, "add_special": False, "parse_special": False}
            reply = self.submit(self._post("/tokenize", body), PROBE_SECONDS).result()
            if _decoded(reply, _Tokens).tokens != tokenizer.encode(text):
                raise VocabularyMismatch(
                    f"The cloud model at {self.name!r} splits {text!r} into other ids than the "
                    "edge model, so their vocabularies differ; choose two models of one family."
                )
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        return f"{len(PROBES)} strings have the same ids at the engine"

    def submit(self, work: Coroutine[Any, Any, Any], deadline: float) -> Future[Any]:
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return asyncio.run_coroutine_threadsafe(self._bounded(work, deadline), self._loop)

    async def complete(self, ids: list[int], n: int, sampling: Sampling) -> Verdict:
        """One consult: the whole prefix goes, the engine's prompt cache does the reuse."""
        body = {
            "prompt": ids,
            "n_predict": n,
            "cache_prompt": True,
            "return_tokens": True,
            "n_probs": TOP,
            "response_fields": _FIELDS,
            **_sampling_fields(sampling, len(ids)),
        }
        reply = _decoded(await self._post("/completion", body), _Completion)
        return self._verdict(reply, n)

    async def prefill(self, ids: list[int]) -> None:
        """Fill the engine's prompt cache and generate nothing."""
        await self._post("/completion", {"prompt": ids, "n_predict": 0, "cache_prompt": True})

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _verdict(self, reply: _Completion, n: int) -> Verdict:
        ended = reply.stop_type == "eos"
        ids = reply.tokens[:n]
        known = {p.id: p for p in reply.completion_probabilities}
        rows = [known.get(token) for token in ids]
        if ended and len(ids) < n and (not ids or ids[-1] not in self._eos_ids):
            # The engine keeps the end token to itself; the edge's own stands for it.
            ids, rows = [*ids, min(self._eos_ids)], [*rows, None]
        if not ids:
            raise CloudProtocolError(f"{self.name!r} answered a consult without any token.")
        timings = reply.timings or _Timings()
        return Verdict(
            ids=tuple(ids),
            logprobs=tuple(row.logprob if row else None for row in rows),
            top=tuple(_candidates(row) for row in rows),
            stopped=ended,
            cached=timings.cache_n,
            computed=timings.prompt_n,
            engine_seconds=(timings.prompt_ms + timings.predicted_ms) / 1000,
        )

    async def _bounded(self, work: Coroutine[Any, Any, Any], deadline: float) -> Any:
        try:
            async with asyncio.timeout(deadline):
                return await work
        except TimeoutError as error:
            raise CloudTimeout(f"{self.name!r} did not answer within {deadline:g} s.") from error

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        return await self._request("POST", path, msgspec.json.encode(body))

    async def _get(self, path: str) -> bytes:
        return await self._request("GET", path, None)

    async def _request(self, method: str, path: str, data: bytes | None) -> bytes:
        """Retried once, where a kept connection was closed under us before any reply."""
        try:
            try:
                return await self._once(method, path, data)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                return await self._once(method, path, data)
        except aiohttp.ClientConnectorCertificateError as error:
            raise CloudUnavailable(
                f"The certificate of {self.name!r} is not trusted; for a private authority set "
                "SSL_CERT_FILE to its certificate."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CloudUnavailable(
                f"The cloud engine at {self.name!r} cannot be reached "
                f"({type(error).__name__}); check the address and that it runs."
            ) from error

    async def _once(self, method: str, path: str, data: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"} if data else None
        async with self._client().request(
            method, self.name + path, data=data, headers=headers, allow_redirects=False
        ) as response:
            body = await response.content.read(_MAX_REPLY + 1)
            while len(body) <= _MAX_REPLY and not response.content.at_eof():
                body += await response.content.read(_MAX_REPLY + 1 - len(body))
            self._raise_for(response, body)
            return body

    def _raise_for(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        status = response.status
        if len(body) > _MAX_REPLY:
            raise CloudProtocolError(f"{self.name!r} sent a reply of more than {_MAX_REPLY} bytes.")
        if status == 200:
            return
        request_id = response.headers.get("x-request-id")
        if status in (401, 403):
            raise CloudRefused(
                f"{self.name!r} refused the key; set EDGEWISE_CLOUD_KEY to one it accepts.",
                request_id=request_id,
            )
        if status in (408, 429) or status >= 500:
            raise CloudUnavailable(
                f"{self.name!r} is not ready (HTTP {status}); try again shortly.",
                request_id=request_id,
            )
        raise CloudRejected(
            f"{self.name!r} declined the request (HTTP {status}: {_excerpt(body)!r}).",
            request_id=request_id,
        )

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(
                keepalive_timeout=_IDLE_SECONDS, ssl=ssl.create_default_context()
            )
            self._http = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._http

    async def _shut(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()


class LlamaServerSession:
    """Implements `CloudSession`."""

    def __init__(self, server: LlamaServer, ids: Sequence[int]) -> None:
        self._server = server
        self._prefix = Prefix(ids)
        self._warming: Future[None] | None = None

    def ask(
        self, position: int, new_ids: Sequence[int], n: int, sampling: Sampling, deadline: float
    ) -> Future[Verdict]:
        ids = self._prefix.put(position, new_ids)
        return self._server.submit(self._server.complete(ids, n, sampling), deadline)

    def warm(self, position: int, new_ids: Sequence[int]) -> None:
        ids = self._prefix.put(position, new_ids)
        self._warming = self._server.submit(self._server.prefill(ids), PROBE_SECONDS)

    def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()


def _sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    if sampling.greedy:
        return {"temperature": 0}
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed_at(position),
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
    }


def _decoded(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CloudProtocolError(
            f"The cloud engine's reply is not llama-server's ({error}); check that the address "
            "is a llama-server."
        ) from error


def _candidates(row: _Probability | None) -> tuple[Candidate, ...]:
    if row is None:
        return ()
    return tuple(
        Candidate(top.id, top.logprob)
        for top in row.top_logprobs
        if top.logprob is not None and math.isfinite(top.logprob)
    )


def _excerpt(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")
