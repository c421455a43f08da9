"""Engines over HTTP, with JSON in both directions. A request that fails raises a `CloudError`."""

import asyncio
import difflib
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpcore2
import httpx2
import msgspec

from edgewise.completion import Completion
from edgewise.engines.base import NOBODY, REQUEST_ID, Client, Engine, drawn, nobody, parallel
from edgewise.engines.connections import checked_address, connections, unreachable
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
)
from edgewise.sampling import Sampling
from edgewise.servers.base import (
    LONGEST_NAME,
    MODELS,
    Described,
    Fault,
    IdServer,
    ListedModel,
    ListedModels,
    Request,
    Wanted,
    decoded,
    named,
)
from edgewise.servers.http import ERRORS, MAX_REPLY, hung_up
from edgewise.servers.replies import words_of

# Of the names of models in a sentence.
_MOST_SHOWN, _MOST_COMPARED = 8, 1_000
# DeepSeek, Mistral, OpenAI and vLLM, Moonshot.
_NO_MODEL = re.compile(
    r"model.{0,200}(not exist|not found|no such)|(invalid|unknown|not found the) model",
    re.IGNORECASE,
)
# What a server answers where there is no such endpoint, or none for this method.
_ELSEWHERE = (404, 405)
_CHECK = "check the address, its path too, and the model's name"
_HINTS = {402: "see to the account's balance", **dict.fromkeys(_ELSEWHERE, _CHECK)}

# At this event only headers have left, which hold nothing of the prompt.
_BEGINS = "http11.send_request_body.started"

MAX_REQUEST_ID = 64
"""Most characters that are kept of an engine's request id."""

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


@contextmanager
def reading(url: str) -> Generator[None]:
    """Context manager that turns a `Fault` (an unusable reply) into a `CloudError` naming `url`."""
    try:
        yield
    except Fault as fault:
        message = f"{url!r} sent {fault}"
        raise fault.error(message, hint=fault.hint, setting=fault.setting) from fault


class Endpoint:
    """A client of a JSON API at `url`. It connects when needed; idle connections are kept 4 s."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Check `url` without connecting. Raises `UsageError` if it is not an address.

        `key` is sent as a bearer token. `model` names one of several served models. A `TextEngine`
        sets `listed` to the names of all served models when it requests them. `renewed` becomes
        True when a connection is opened while no other is open: the server may have been restarted.
        """
        self.url, self.model = checked_address(url), model
        self.listed: list[str] = []
        self._bearer: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}
        self.connected: Callable[[], None] = nobody
        self.renewed = False
        self._pool: httpcore2.AsyncConnectionPool | None = None

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.aclose()

    async def send(
        self, request: Request, client: Client = NOBODY, *, billable: bool = True
    ) -> bytes:
        """Send a request; return the reply's body. Raises a `CloudError` unless its status is 200.

        A request with a body has the headers of `client` and is counted in `client.sent`, under
        `requests` only if `billable` (the provider bills it). If a busy server names a delay
        (`Retry-After`) that ends before the deadline of `client`, such a request is sent once more.
        """
        if request.body is None:
            return await self._twice(_Sending("GET", request))
        sending = _Sending("POST", request, msgspec.json.encode(request.body), client, billable)
        try:
            return await self._twice(sending)
        except CloudUnavailable as busy:
            if busy.retry_after is None or not client.waits(busy.retry_after):
                raise
            await asyncio.sleep(busy.retry_after)
        return await self._twice(sending)

    def reading(self) -> AbstractContextManager[None]:
        """Return a context manager that turns a `Fault` (an unusable reply) into a `CloudError`."""
        return reading(self.url)

    async def _twice(self, sending: "_Sending") -> bytes:
        """Send a request, and once more if a kept connection turns out to be closed."""
        try:
            try:
                return await self._once(sending)
            except Exception as error:
                # Over a new connection the request may have been read, computed and billed.
                if not sending.kept or sending.answered or not hung_up(error):
                    raise
                return await self._once(sending)
        except ERRORS as error:
            raise unreachable(self.url, error) from error

    async def _once(self, sending: "_Sending") -> bytes:
        sending.kept, sending.answered = True, False
        pool = self._pool = self._pool or connections(self.url)

        async def trace(event: str, told: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.started":
                sending.kept = False
                self.renewed |= not any(one.is_connected() for one in pool.connections)
            # Before that a proxy is asked to connect.
            elif event == _BEGINS and told["request"].method != b"CONNECT":
                if not sending.kept:
                    self.connected()
                sending.count()

        async with pool.stream(
            sending.method,
            self._at(sending.request.path),
            content=sending.data,
            # httpcore itself would name an IPv6 address without its brackets.
            headers={"Host": self._parsed.netloc.decode(), **self._bearer, **sending.headers},
            extensions={"trace": trace},
        ) as response:
            # The server has read it: not to be sent again over another connection.
            sending.answered = True
            parts, size = list[bytes](), 0
            async for part in response.aiter_stream():
                parts.append(part)
                # While it comes: a reply without end must not fill memory first.
                if (size := size + len(part)) > MAX_REPLY:
                    raise CloudProtocolError(
                        f"{self.url!r} sent a reply of more than {MAX_REPLY} bytes."
                    )
        body = b"".join(parts)
        if response.status != 200:
            said = {name.lower(): value.decode("latin-1") for name, value in response.headers}
            raise self._problem(response.status, said, body, sending.client.request_id)
        return body

    def _at(self, path: str) -> httpcore2.URL:
        url = self._parsed
        target = url.raw_path.rstrip(b"/") + path.encode()
        return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=target)

    @cached_property
    def _parsed(self) -> httpx2.URL:
        return httpx2.URL(self.url)

    def _problem(
        self, status: int, headers: Mapping[bytes, str], body: bytes, name: str
    ) -> CloudError:
        # Not every engine sends back the request id that it was given.
        request_id = headers.get(REQUEST_ID.lower().encode()) or name
        later = seconds_of(headers.get(b"retry-after"))
        problem = not_now(self.url, status, request_id, later)
        problem = problem or self.declined(status, body, bounded(request_id))
        problem.declined = True
        return problem

    def declined(self, status: int, body: bytes, request_id: str | None) -> CloudRejected:
        """Return the error for an HTTP `status`, such as 400, that declines the request itself."""
        said = words_of(body)
        reason = f" (HTTP {status}: {said!r})"
        if self.model is not None and _NO_MODEL.search(said):
            return not_served(self.url, self.model, self.listed, reason)
        error = Declined(
            f"{self.url!r} declined the request{reason}",
            hint=_HINTS.get(status),
            request_id=request_id,
            own=status not in _HINTS,
        )
        error.said, error.elsewhere = said, status in _ELSEWHERE
        return error


class HttpEngine(Endpoint, Engine):
    """An `Engine` over HTTP, for any server that takes token ids; `server` describes its API."""

    def __init__(
        self, server: IdServer, url: str, *, key: str | None = None, model: str | None = None
    ) -> None:
        Endpoint.__init__(self, url, key=key, model=model)
        Engine.__init__(self, self.url)
        self.server, self.dialect = server, server.name
        self.verifies, self.reads_once = server.verifies, server.reads_once

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        wanted = await self._wanted(ids, n, client)
        request = self.server.complete(wanted._replace(drawn=drawn(sampling, len(ids))))
        reply = await self.consulted(request, client)
        with self.reading():
            return self.server.completed(reply)

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        request = self.server.score(await self._wanted(ids, count, client))
        reply = await self.consulted(request, client)
        with self.reading():
            return self.server.scored(reply, ids[-count:])

    async def consulted(self, request: Request, client: Client) -> bytes:
        """Send a request for tokens or verdicts; return the reply's body. Raises a `CloudError`."""
        return await self.send(request, client)

    async def _wanted(self, ids: Sequence[int], n: int, client: Client = NOBODY) -> Wanted:
        model = await self.model_name() if self.server.names else self.model
        salt = client.salt if client.salt and self.salted else None
        return Wanted(ids, n, model=model, session=client.session, salt=salt)

    async def tokenize(self, text: str) -> list[int] | None:
        try:
            reply = await self.send(self.server.tokenize(text, await self.named()))
        except CloudRejected:
            return None
        with self.reading():
            return self.server.tokenized(reply)

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        try:
            reply = await self.send(self.server.detokenize(ids, await self.named()), client)
        except Declined as error:
            if error.elsewhere:
                return None
            raise
        with self.reading():
            return self.server.detokenized(reply)

    async def named(self) -> str | None:
        """Return the model's name in tokenize and detokenize requests; None if there is none."""
        return await self.model_name()

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """Return whether the server reads the request field `cache_salt`.

        False if the API has no such field (`IdServer.salts`). Else it is sent the prompt `ids`
        twice: with a text as salt, which it must accept, and with a number, which it must decline.
        """
        wanted = await self._wanted(ids, 1)

        async def takes(salt: object) -> bool | None:
            try:
                await self.send(self.server.complete(wanted._replace(salt=salt)))
            except CloudRejected:
                return False
            except CloudError:
                return None
            return True

        if not self.server.salts:
            return False
        text, number = await parallel(takes("edgewise-probe"), takes(0))
        # A server that ignores the field takes both. One that could not be asked declined nothing.
        return bool(text) and number is False

    async def model_name(self) -> str | None:
        """Return the model's name, after asking the server if unknown; None if not reported."""
        if self.described.model is None:
            self.described = await self.describe()
        return self.described.model

    async def describe(self) -> Described:
        """Return the model's name and vocabulary size, as the server lists them.

        Without a list both are None; if `model` is set or requests must name a model, that raises a
        `CloudError`, as does an empty list or lost connection. Raises `CloudRejected` if `model` is
        not listed, or is a LoRA adapter in whose place the engine would use the base model.
        """
        try:
            served = await served_model(self)
        except (CloudProtocolError, CloudRejected):
            if self.model is not None or self.server.names:
                raise
            return Described()
        if self.model is not None and not self.server.adapts and (base := served.parent):
            raise CloudRejected(
                f"{self.model!r} at {self.url!r} is an adapter of {base!r}",
                hint=f"name {base!r}",
                setting="cloud_model",
            )
        return served.described

    async def ready(self) -> None:
        try:
            await self.send(Request("/health"))
        except CloudUnavailable:
            # At /health a router says that an engine is down, here whether any other is up.
            with suppress(CloudError):
                await self.send(Request("/readiness"))
                return
            raise


@dataclass
class _Sending:
    """A request being sent. `kept`: over a connection that an earlier request had opened."""

    method: str
    request: Request
    data: bytes | None = None
    client: Client = NOBODY
    billable: bool = True
    kept: bool = False
    answered: bool = False
    counted: bool = False

    @property
    def headers(self) -> dict[str, str]:
        # A compressed reply could be far larger than what was read of it.
        plain = {"Accept-Encoding": "identity"}
        if self.data is None:
            return plain
        return {**plain, **self.client.headers, "Content-Type": "application/json"}

    def count(self) -> None:
        """Count the body in `client.sent`. Raises a `CloudError` if it must not be sent."""
        if self.data is not None and self.client.sent is not None:
            ids, again = self.request.ids, self.counted
            self.client.sent.add(ids, self.data, billable=self.billable, again=again)
            self.counted = True


async def served_models(endpoint: Endpoint) -> list[ListedModel]:
    """Return the models that a server lists. Raises a `CloudError` if it lists none."""
    reply = await endpoint.send(MODELS)
    with endpoint.reading():
        models = decoded(reply, ListedModels).data
    if not models:
        raise CloudUnavailable(f"{endpoint.url!r} serves no model", hint="load one there")
    return models


async def served_model(endpoint: Endpoint) -> ListedModel:
    """Return the listed model `endpoint.model` (None: the first). Raises a `CloudError` if none."""
    models = await served_models(endpoint)
    model = model_named(models, endpoint.model)
    if model is None:
        raise not_served(endpoint.url, endpoint.model, [model.id for model in models])
    return model


def not_served(
    url: str, model: str | None, names: Sequence[str], status: str = ""
) -> CloudRejected:
    """Return the error for a `model` that is not served; `names` are those of the served models.

    `status` is the server's own reason as text, if it gave one; the message ends with it.
    """
    listed = f"name one that it serves: {shown(names, str(model))}" if names else "name another"
    return CloudRejected(
        f"{url!r} serves no model {model!r}{status}", hint=listed, setting="cloud_model"
    )


def model_named(models: Sequence[ListedModel], model: str | None) -> ListedModel | None:
    """Return the one named `model` or `model:latest` (None: the first); None if there is none."""
    name = named([entry.id for entry in models], model)
    return next((entry for entry in models if model is None or entry.id == name), None)


def shown(names: Sequence[str], like: str = "") -> str:
    """Return up to 8 of `names` as text for a message; those that resemble `like` come first.

    An example is "'qwen3', 'smollm2' and 5 more".
    """
    close = difflib.get_close_matches(like, names[:_MOST_COMPARED], _MOST_SHOWN, cutoff=0.5)
    some = list(dict.fromkeys([*close, *names]))[:_MOST_SHOWN]
    listed = ", ".join(repr(name[:LONGEST_NAME]) for name in some)
    return listed if len(some) == len(names) else f"{listed} and {len(names) - len(some)} more"


class Declined(CloudRejected):
    """The server declined the request by its HTTP status, such as 400; `said` is its reason.

    `elsewhere` is True for status 404 or 405: the server has nothing at this path.
    """

    said: str = ""
    elsewhere: bool = False


class Redirected(CloudRejected):
    """The server redirects to another address, to which neither key nor prompt is sent."""


def not_now(
    url: str, status: int, request_id: str | None = None, later: float | None = None
) -> CloudError | None:
    """Return the error for HTTP statuses that do not concern the request itself; None for others.

    They are redirects (3xx), a refused key (401, 403) and a server not ready (408, 429, 5xx). At
    429 and 503 the error's `retry_after` is `later`, the seconds in the header `Retry-After`.
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


def bounded(request_id: str | None) -> str | None:
    """Return a request id's first 64 characters, made safe to show in a log or a terminal.

    What is not printable ASCII becomes "?". None if there is no id.
    """
    if not request_id:
        return None
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in request_id)[
        :MAX_REQUEST_ID
    ]


def seconds_of(header: str | None) -> float | None:
    """Return the seconds in a `Retry-After` header; None for a date or anything else."""
    said = (header or "").strip()
    return float(said) if _SECONDS.fullmatch(said) else None
