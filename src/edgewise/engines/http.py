"""Engines over HTTP: JSON both ways, and a `CloudError` for whatever goes wrong."""

import asyncio
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated

import aiohttp
import msgspec

from edgewise.completion import MOST_IDS
from edgewise.engines.base import (
    NOBODY,
    REQUEST_ID,
    Client,
    Described,
    Engine,
    decoded,
    nobody,
    parallel,
)
from edgewise.engines.connections import checked_address, connections, unreachable
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
)

_MAX_REPLY = 4 << 20
# Of the names of models in a sentence.
_MOST_SHOWN, _MOST_COMPARED, _LONGEST_NAME = 8, 1_000, 100
# DeepSeek, Mistral, OpenAI and vLLM, Moonshot.
_NO_MODEL = re.compile(
    r"model.{0,200}(not exist|not found|no such)|(invalid|unknown|not found the) model",
    re.IGNORECASE,
)
# Of an engine's own words.
_LONGEST_SAID = 200
_ELSEWHERE = (404, 405)
_CHECK = "check the address, its path too, and the model's name"
_HINTS = {402: "see to the account's balance", **dict.fromkeys(_ELSEWHERE, _CHECK)}

MAX_REQUEST_ID = 64
"""Longest request id that is kept of an engine's, characters."""

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


class Endpoint:
    """An address that speaks JSON; connections are opened when they are needed and kept a while."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Raises `UsageError` for what is no address. `https` is verified; the key is a bearer.

        `model` is one of those it serves; `listed` are all, once they were asked for.
        """
        self.url, self.model = checked_address(url), model
        self.listed: list[str] = []
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.connected: Callable[[], None] = nobody
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def post(
        self, path: str, body: object, client: Client = NOBODY, *, ids: int = 0, tells: bool = True
    ) -> bytes:
        """The reply to a JSON body (`ids`, `tells`: see `Outgoing.add`); raises a `CloudError`."""
        request = _Request("POST", path, msgspec.json.encode(body), client, ids, tells)
        try:
            return await self._twice(request)
        except CloudUnavailable as busy:
            if busy.retry_after is None or not client.waits(busy.retry_after):
                raise
            await asyncio.sleep(busy.retry_after)
        return await self._twice(request)

    async def get(self, path: str) -> bytes:
        """The reply; raises a `CloudError`."""
        return await self._twice(_Request("GET", path))

    async def _twice(self, request: "_Request") -> bytes:
        """Retried once, where a kept connection was closed under us before any reply.

        Over a new connection the request may have been read, computed and billed: never again.
        """
        try:
            try:
                return await self._once(request)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                if not request.kept:
                    raise
                return await self._once(request)
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise request.refused or unreachable(self.url, error) from error

    async def _once(self, request: "_Request") -> bytes:
        request.kept = False
        async with self._client().request(
            request.method,
            self.url + request.path,
            data=request.data,
            headers=request.headers,
            allow_redirects=False,
            trace_request_ctx=request,
        ) as response:
            body = await response.content.read(_MAX_REPLY + 1)
            while len(body) <= _MAX_REPLY and not response.content.at_eof():
                body += await response.content.read(_MAX_REPLY + 1 - len(body))
            self._raise_for(response, body)
            return body

    def _raise_for(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        # Not every engine sends back what it was given.
        sent = response.request_info.headers
        request_id = response.headers.get(REQUEST_ID) or sent.get(REQUEST_ID)
        if len(body) > _MAX_REPLY:
            raise CloudProtocolError(f"{self.url!r} sent a reply of more than {_MAX_REPLY} bytes.")
        if response.status == 200:
            return
        later = seconds_of(response.headers.get("Retry-After"))
        problem = not_now(self.url, response.status, request_id, later)
        problem = problem or self.declined(response.status, body, bounded(request_id))
        problem.declined = True
        raise problem

    def declined(self, status: int, body: bytes, request_id: str | None) -> CloudRejected:
        """The error for a reply that declines the request itself."""
        said = words_of(body)
        reason = f" (HTTP {status}: {said!r})"
        if self.model is not None and _NO_MODEL.search(said):
            return not_served(self.url, self.model, self.listed, reason)
        error = Declined(
            f"{self.url!r} declined the request{reason}",
            hint=_HINTS.get(status),
            request_id=request_id,
        )
        error.said, error.elsewhere = said, status in _ELSEWHERE
        return error

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = connections(self.url, self._headers, trace_configs=[self._trace()])
        return self._http

    def _trace(self) -> aiohttp.TraceConfig:
        async def opened(*_: object) -> None:
            self.connected()

        async def reused(_: object, context: SimpleNamespace, __: object) -> None:
            context.trace_request_ctx.kept = True

        async def sent(
            _: object, context: SimpleNamespace, chunk: aiohttp.TraceRequestChunkSentParams
        ) -> None:
            # A body of bytes goes as one chunk.
            context.trace_request_ctx.count(chunk.chunk)

        config = aiohttp.TraceConfig()
        config.on_connection_create_end.append(opened)
        config.on_connection_reuseconn.append(reused)
        config.on_request_chunk_sent.append(sent)
        return config


class HttpEngine(Endpoint, Engine):
    """An engine's endpoint."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        Endpoint.__init__(self, url, key=key, model=model)
        Engine.__init__(self, self.url)

    async def tokenize(self, text: str) -> list[int] | None:
        """`Engine.tokenize` in the form that vLLM and SGLang share."""
        body = {"model": await self.model_name(), "prompt": text, "add_special_tokens": False}
        try:
            return await self.tokens(body)
        except CloudRejected:
            return None

    async def tokens(self, body: object) -> list[int]:
        """Ids by `/tokenize`; raises a `CloudError`."""
        return decoded(await self.post("/tokenize", body), _Tokens, self.dialect).tokens

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        """`Engine.detokenize` in the form that vLLM and SGLang share."""
        body = {"model": await self.model_name(), "tokens": ids, "skip_special_tokens": False}
        return await self.text_of(body, client)

    async def text_of(self, body: object, client: Client) -> str | None:
        """A text by `/detokenize`, None where there is none; raises a `CloudError`."""
        try:
            answered = await self.post("/detokenize", body, client)
        except Declined as error:
            if error.elsewhere:
                return None
            raise
        return decoded(answered, _Text, self.dialect).value

    async def knows_salt(self, path: str, fields: Mapping[str, object]) -> bool:
        """Whether requests may have a text as `cache_salt`, and no number.

        An engine that takes a number too ignores the field.
        """

        async def takes(salt: object) -> bool:
            try:
                await self.post(path, {**fields, "cache_salt": salt})
            except CloudError:
                return False
            return True

        text, number = await parallel(takes("edgewise-probe"), takes(0))
        return text and not number

    async def model_name(self) -> str | None:
        """The served model, asked anew by each probe; None where it does not say."""
        if self.described.model is None:
            self.described = await self.describe()
        return self.described.model

    async def describe(self) -> Described:
        """See `Engine.describe`. Empty without a valid list of models, unless one was named."""
        try:
            return (await served_model(self)).described
        except (CloudProtocolError, CloudRejected):
            if self.model is not None:
                raise
            return Described()

    async def ready(self) -> None:
        try:
            await self.get("/health")
        except CloudUnavailable:
            # There a router says that one of its engines is down, here whether it has another.
            with suppress(CloudError):
                await self.get("/readiness")
                return
            raise


@dataclass
class _Request:
    """A request and how it travels. `kept`: over a connection that an earlier one had made.

    `refused` is why it may not be sent: what is raised in a trace becomes a broken connection to
    aiohttp.
    """

    method: str
    path: str
    data: bytes | None = None
    client: Client = NOBODY
    ids: int = 0
    tells: bool = True
    kept: bool = False
    counted: bool = False
    refused: CloudError | None = None

    @property
    def headers(self) -> dict[str, str] | None:
        return {**self.client.headers, "Content-Type": "application/json"} if self.data else None

    def count(self, body: bytes) -> None:
        """Bytes are handed to a connection, at each attempt."""
        try:
            if self.client.sent is not None:
                self.client.sent.add(self.ids, body, billable=self.tells, again=self.counted)
                self.counted = True
        except CloudError as error:
            self.refused = error
            raise


class _Meta(msgspec.Struct, frozen=True):
    n_vocab: Annotated[int, msgspec.Meta(ge=1, le=MOST_IDS)] | None = None
    eos_token: str | None = None


class Served(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`: `owned_by` names the engine, `meta` is llama-server's.

    `parent` is the model that an adapter is for.
    """

    id: str
    owned_by: str = ""
    parent: str | None = None
    meta: _Meta | None = None

    @property
    def described(self) -> Described:
        return Described(self.id, self.meta.n_vocab if self.meta else None)


class ServedModels(msgspec.Struct, frozen=True):
    data: list[Served]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    """A reply's text, under the names of llama-server, vLLM and SGLang."""

    content: str | None = None
    prompt: str | None = None
    text: str | None = None

    @property
    def value(self) -> str | None:
        """The first that is there."""
        return next((t for t in (self.content, self.prompt, self.text) if t is not None), None)


async def served_models(engine: HttpEngine) -> list[Served]:
    """Models that an engine serves, at least one; raises a `CloudError`."""
    models = decoded(await engine.get("/v1/models"), ServedModels, engine.dialect).data
    if not models:
        raise CloudUnavailable(f"{engine.url!r} serves no model", hint="load one there")
    return models


async def served_model(engine: HttpEngine) -> Served:
    """The model that was named, else the first that an engine serves; raises a `CloudError`."""
    models = await served_models(engine)
    model = named(models, engine.model)
    if model is None:
        raise not_served(engine.url, engine.model, [model.id for model in models])
    return model


def not_served(
    url: str, model: str | None, names: Sequence[str], status: str = ""
) -> CloudRejected:
    """The error for a `model` that is not among the `names`; `status` is added to it."""
    listed = f"name one that it serves: {shown(names, str(model))}" if names else "name another"
    return CloudRejected(
        f"{url!r} serves no model {model!r}{status}", hint=listed, setting="cloud_model"
    )


def named(models: Sequence[Served], model: str | None) -> Served | None:
    """The model of that name, or None; the first where `model` is None.

    Ollama's tag `latest` may be left out.
    """
    if model is None:
        return models[0]
    found = {entry.id: entry for entry in reversed(models)}
    return found.get(model) or found.get(f"{model}:latest")


def shown(names: Sequence[str], like: str = "") -> str:
    """Some of many names, those that are `like` one first."""
    close = difflib.get_close_matches(like, names[:_MOST_COMPARED], _MOST_SHOWN, cutoff=0.5)
    some = list(dict.fromkeys([*close, *names]))[:_MOST_SHOWN]
    listed = ", ".join(repr(name[:_LONGEST_NAME]) for name in some)
    return listed if len(some) == len(names) else f"{listed} and {len(names) - len(some)} more"


class Declined(CloudRejected):
    """A request was declined by its HTTP status; `said` is the engine's own reason.

    `elsewhere`: nothing is at the path, which says nothing of the request.
    """

    said: str = ""
    elsewhere: bool = False


class Redirected(CloudRejected):
    """The address leads to another, which may be anybody's: keys and prompts do not follow."""


def not_now(
    url: str, status: int, request_id: str | None = None, later: float | None = None
) -> CloudError | None:
    """The error for an HTTP status about the address, the key or overload; None for any other.

    `later` is in how many seconds it wants to be asked again, where it said so.
    """
    request_id = bounded(request_id)
    if 300 <= status < 400:
        return Redirected(
            f"{url!r} redirects elsewhere (HTTP {status}), and no redirect is followed",
            hint="give the address that it leads to",
            request_id=request_id,
        )
    if status in (401, 403):
        return CloudRefused(
            f"{url!r} refused the key",
            hint="set EDGEWISE_CLOUD_KEY, or the variable that holds its key, to one it accepts",
            request_id=request_id,
        )
    if status in (408, 429) or status >= 500:
        busy = CloudUnavailable(
            f"{url!r} is not ready (HTTP {status})",
            hint="try again " + ("shortly" if later is None else f"in {later:g} s"),
            request_id=request_id,
        )
        busy.retry_after = later if status in (429, 503) else None
        return busy
    return None


def words_of(said: object) -> str:
    """The error message in an engine's or API's reply of any form, at most 200 characters."""
    if isinstance(said, bytes):
        try:
            said = msgspec.json.decode(said)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = said.decode("utf-8", "replace")
    for _ in range(4):
        if not isinstance(said, dict):
            break
        parts = [said.get(name) for name in ("error", "message", "detail")]
        said = next((part for part in parts if part is not None), str(said))
    return " ".join(str(said).split())[:_LONGEST_SAID]


def bounded(request_id: str | None) -> str | None:
    """A request id that is safe in a frame, a log and a terminal."""
    if not request_id:
        return None
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in request_id)[
        :MAX_REQUEST_ID
    ]


def seconds_of(header: str | None) -> float | None:
    """Seconds of a `Retry-After`; None where there are none (a date is not read)."""
    said = (header or "").strip()
    return float(said) if _SECONDS.fullmatch(said) else None
