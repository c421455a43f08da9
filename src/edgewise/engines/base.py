"""Engines that serve large models over HTTP: what they share, whatever their dialect.

An `Engine` is asyncio code without a thread of its own. On the device `EngineCloud` runs one in an
I/O thread and implements `CloudModel`; the gateway runs many in its event loop.
"""

import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.errors import (
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
    UsageError,
    VocabularyMismatch,
)
from edgewise.events import Candidate
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict

TOP = 5
"""Candidates asked for with every token."""

PROBE_SECONDS = 30.0
_MAX_REPLY = 4 << 20
_IDLE_SECONDS = 4.0
_T = TypeVar("_T")

Priority = Literal["none", "lower first", "higher first"]


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found an engine able to do, beside taking and returning token ids.

    `meter`: it tells which prompt tokens came from its cache. `top`: candidates a token.
    `salt`: prefix caches of several tenants can be kept apart. `tokenizer`: it tokenises text, so
    that a shared vocabulary can be proven.
    """

    engine: str
    model: str | None = None
    meter: bool = False
    top: int = 0
    priority: Priority = "none"
    salt: bool = False
    tokenizer: bool = False


class Client(msgspec.Struct, frozen=True):
    """Whose consult it is: `session` keeps a replica's cache warm, `salt` keeps tenants apart.

    `sent` is told what travels.
    """

    session: str = ""
    salt: str = ""
    urgent: bool = True
    sent: Sent | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Under the names by which fleets route: Ray Serve, vLLM and llm-d; SGLang's gateway."""
        if not self.session:
            return {}
        return {"X-Session-Id": self.session, "X-SMG-Routing-Key": self.session}


NOBODY = Client()


class Engine(ABC):
    """One engine's endpoint. Methods run in one event loop; `close` gives its connections back."""

    dialect: ClassVar[str]
    health: ClassVar[str] = "/health"

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Raises `UsageError` for what is no address. `https` is verified; the key is a bearer."""
        self.url = checked_address(url)
        self.abilities = Abilities(engine=self.dialect)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http: aiohttp.ClientSession | None = None

    @abstractmethod
    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Verdict:
        """`n` tokens after `ids`. An engine may keep an end token to itself: see `with_end`."""

    @abstractmethod
    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        """Fill the prefix cache; what the engine generates for that is dropped."""

    @abstractmethod
    async def tokenize(self, text: str) -> list[int] | None:
        """Ids of `text` without special tokens; None where the engine does not tell."""

    @abstractmethod
    async def model_name(self) -> str | None:
        """What it serves; raises a `CloudError` where the engine is not of this dialect."""

    async def ready(self) -> None:
        """Raises a `CloudError` unless the engine can answer."""
        await self.get(self.health)

    async def probe(self) -> Abilities:
        """Find out what the engine can do; raises `CloudRejected` for one that takes no ids."""
        await self.ready()
        model = await self.model_name()
        tokens = await self.tokenize(PROBES[0])
        ids = tokens or [1, 2, 3]
        try:
            verdict = await self.complete(ids, 1, Sampling())
        except (CloudRejected, CloudProtocolError) as error:
            raise CloudRejected(
                f"The engine at {self.url!r} does not take and return token ids, so it cannot "
                f"serve consults ({error})"
            ) from error
        self.abilities = Abilities(
            engine=self.dialect,
            model=model,
            meter=verdict.cached is not None,
            top=len(verdict.top[0]) if verdict.top else 0,
            priority=await self.priority(ids),
            salt=await self.has_salt(ids),
            tokenizer=tokens is not None,
        )
        return self.abilities

    async def priority(self, ids: Sequence[int]) -> Priority:
        """Which sign of a request's priority goes first."""
        return "none"

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """Whether prefix caches can be kept apart."""
        return False

    async def prove(self, tokenizer: Tokenizer) -> str:
        """Compare what both make of fixed strings; says how it was proven."""
        for text in PROBES:
            ids = await self.tokenize(text)
            if ids is None:
                raise VocabularyMismatch(
                    f"The engine at {self.url!r} does not say how it tokenises, so nothing proves "
                    "that its vocabulary is the edge model's; serve its tokenizer too."
                )
            if ids != tokenizer.encode(text):
                raise VocabularyMismatch(
                    f"The cloud model at {self.url!r} splits {text!r} into other ids than the "
                    "edge model, so their vocabularies differ; choose two models of one family."
                )
        return f"{len(PROBES)} strings have the same ids at the engine"

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def post(
        self, path: str, body: object, client: Client = NOBODY, *, ids: int = 0
    ) -> bytes:
        """The reply to a JSON body that holds `ids` token ids; raises a `CloudError`."""
        data = msgspec.json.encode(body)
        if client.sent is not None:
            client.sent.add(ids, len(data))
        return await self._request("POST", path, data, client.headers)

    async def get(self, path: str) -> bytes:
        """The reply; raises a `CloudError`."""
        return await self._request("GET", path, None, {})

    async def _request(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> bytes:
        """Retried once, where a kept connection was closed under us before any reply."""
        try:
            try:
                return await self._once(method, path, data, headers)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                return await self._once(method, path, data, headers)
        except aiohttp.ClientConnectorCertificateError as error:
            raise CloudUnavailable(
                f"The certificate of {self.url!r} is not trusted; for a private authority set "
                "SSL_CERT_FILE to its certificate."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CloudUnavailable(
                f"The cloud engine at {self.url!r} cannot be reached "
                f"({type(error).__name__}); check the address and that it runs."
            ) from error

    async def _once(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> bytes:
        sent = {**headers, "Content-Type": "application/json"} if data else headers
        async with self._client().request(
            method, self.url + path, data=data, headers=sent, allow_redirects=False
        ) as response:
            body = await response.content.read(_MAX_REPLY + 1)
            while len(body) <= _MAX_REPLY and not response.content.at_eof():
                body += await response.content.read(_MAX_REPLY + 1 - len(body))
            self._raise_for(response, body)
            return body

    def _raise_for(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        status = response.status
        if len(body) > _MAX_REPLY:
            raise CloudProtocolError(f"{self.url!r} sent a reply of more than {_MAX_REPLY} bytes.")
        if status == 200:
            return
        request_id = response.headers.get("x-request-id")
        if status in (401, 403):
            raise CloudRefused(
                f"{self.url!r} refused the key; set EDGEWISE_CLOUD_KEY to one it accepts.",
                request_id=request_id,
            )
        if status in (408, 429) or status >= 500:
            raise CloudUnavailable(
                f"{self.url!r} is not ready (HTTP {status}); try again shortly.",
                request_id=request_id,
            )
        raise CloudRejected(
            f"{self.url!r} declined the request (HTTP {status}: {_excerpt(body)!r}).",
            request_id=request_id,
        )

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(
                keepalive_timeout=_IDLE_SECONDS, ssl=ssl.create_default_context(), limit=0
            )
            self._http = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._http


def checked_address(url: str) -> str:
    """Without a trailing slash; raises `UsageError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no http:// or https:// address of a cloud engine.")
    if parts.username or parts.password:
        raise UsageError("Put the cloud key into EDGEWISE_CLOUD_KEY, not into the address.")
    return url.rstrip("/")


def decoded(body: bytes, kind: type[_T], engine: str) -> _T:
    """A reply as its dialect promises it; raises `CloudProtocolError`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CloudProtocolError(
            f"The cloud engine's reply is not {engine}'s ({error}); check the address, and "
            "--cloud-engine where that was given."
        ) from error


def candidates(found: Sequence[tuple[int, float | None]]) -> tuple[Candidate, ...]:
    """Those with a logprob that is a number, best first."""
    known = [
        Candidate(token, logprob)
        for token, logprob in found
        if logprob is not None and math.isfinite(logprob)
    ]
    return tuple(sorted(known, key=lambda candidate: -candidate.logprob)[:TOP])


def _excerpt(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")


class Served(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`, which all engines have; `owned_by` names the engine."""

    id: str
    owned_by: str = ""


class _Models(msgspec.Struct, frozen=True):
    data: list[Served]


async def tokens_if_told(engine: Engine, text: str) -> list[int] | None:
    """Ids of `text` by `/tokenize`, in the form that vLLM and SGLang share."""
    body = {"model": await engine.model_name(), "prompt": text, "add_special_tokens": False}
    try:
        return decoded(await engine.post("/tokenize", body), _Tokens, engine.dialect).tokens
    except CloudRejected:
        return None


class _Tokens(msgspec.Struct):
    tokens: list[int]


async def name_if_told(engine: Engine) -> str | None:
    """What an engine serves, for those that work without knowing."""
    try:
        return (await served_model(engine)).id
    except (CloudProtocolError, CloudRejected):
        return None


async def served_model(engine: Engine) -> Served:
    """The first model that an engine serves; raises a `CloudError`."""
    models = decoded(await engine.get("/v1/models"), _Models, engine.dialect).data
    if not models:
        raise CloudUnavailable(f"The engine at {engine.url!r} serves no model; load one there.")
    return models[0]
