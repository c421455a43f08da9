"""`Server`: HTTP requests to the server that runs the edge model; failures are `EdgeError`s."""

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from edgewise.errors import AddressError, EdgeError
from edgewise.servers.base import Fault, Request
from edgewise.servers.http import ERRORS, MAX_REPLY, client_options, why

PATIENCE = 120.0
"""Most seconds until a whole reply, or the next token, has come; prefill time is included."""

# At each check mlx-lm scans a disk.
RECHECK = 5.0
"""Least seconds between checks of a server that ends every connection."""

# A server on this machine or in this house accepts at once, or is not there.
_CONNECTING = 5.0
# A token with its candidates takes some kilobytes; without a bound a line could fill memory.
_MAX_LINE = 1 << 20
# Programs whose models are files on the disk, by the port that they listen on.
_PROGRAMS = {11434: "ollama", 1234: "lmstudio"}


class Server:
    """A client of the server at `url`: JSON over HTTP or verified HTTPS, no redirects or proxies.

    `key` is sent as the API key. `sent(host, body)` is called before each body is sent. Raises
    `AddressError` for an invalid URL.
    """

    def __init__(
        self, url: str, *, key: str | None = None, sent: Callable[[str, bytes], None] | None = None
    ) -> None:
        self.url, self._record, self._key = url, sent, key
        self.connection: Any = None
        """Connection (httpcore's) of the last `found`; after a GET, no stream uses or closes it."""
        self.closes = False
        """Whether the server ends `connection` after its reply, as some servers always do."""
        self._clients = set[httpx2.Client]()
        try:
            # Apart, so that no stream closes `connection`.
            self._idle = {method: [self._opened_client()] for method in ("GET", "POST")}
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise AddressError(f"{url!r} is no address of a server", setting="edge") from error

    def _opened_client(self) -> httpx2.Client:
        # A proxy of the environment would be sent what is to stay near.
        timeout = httpx2.Timeout(PATIENCE, connect=_CONNECTING)
        http = httpx2.Client(**client_options(self.url, self._key, timeout))
        self._clients.add(http)
        return http

    def close(self) -> None:
        for http in list(self._clients):
            http.close()

    def found(self, request: Request) -> bytes | None:
        """Send a request, and return the reply's body; None if its status is not 200.

        Raises `EdgeError` if no reply comes, for a refused key or a redirect, and for status 503.
        """
        with self._sent(request) as response:
            self.connection = response.extensions["network_stream"]
            self.closes = response.headers.get("Connection", "").lower() == "close"
            self.closes |= response.http_version != "HTTP/1.1"
            if response.status_code == 503:
                raise self._gone("HTTP 503: it may still be loading")
            return self._whole(response) if response.status_code == 200 else None

    def send(self, request: Request) -> bytes:
        """Send a request, return the reply's body. Raises `EdgeError` unless its status is 200."""
        with self._opened(request) as response:
            return self._whole(response)

    @contextmanager
    def lines(self, request: Request) -> Generator["Lines"]:
        """Context manager: send a request, yield the reply's lines. `EdgeError` unless HTTP 200."""
        with self._opened(request) as response:
            yield Lines(self, response)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Context manager that turns a `Fault` (an unusable reply) into an `EdgeError`."""
        try:
            yield
        except Fault as fault:
            raise self.broken(str(fault)) from fault

    def _whole(self, response: httpx2.Response) -> bytes:
        data, since = b"", time.monotonic()
        with self.named():
            for part in response.iter_raw():
                data += part
                if len(data) > MAX_REPLY:
                    raise self.broken(f"a reply of more than {MAX_REPLY} bytes")
                self.require_soon(since)
        return data

    def require_soon(self, since: float) -> None:
        """Raise `EdgeError` if `PATIENCE` seconds have passed since `since` (`time.monotonic`)."""
        if time.monotonic() - since > PATIENCE:
            raise self._gone(f"no token for {PATIENCE:g} s")

    @contextmanager
    def _opened(self, request: Request) -> Generator[httpx2.Response]:
        """Yield a response of status 200, before its body is read. Raises `EdgeError`."""
        with self._sent(request) as response:
            if response.status_code != 200:
                said = self._whole(response)[:200].decode("utf-8", "replace")
                raise self.broken(f"HTTP {response.status_code}: {said!r}")
            yield response

    @contextmanager
    def _sent(self, request: Request) -> Generator[httpx2.Response]:
        path, body, _ = request
        method, content = "GET", None
        if body is not None:
            method, content = "POST", msgspec.json.encode(body)
            # Before it leaves: the record holds all that was sent.
            if self._record is not None:
                self._record(urlsplit(self.url).netloc, content)
        headers = {"Content-Type": "application/json"}
        with self._client(method) as http:
            with self.named():
                sending = http.build_request(method, path, content=content, headers=headers)
                response = self._started(http, sending)
            with closing(response):
                self._require_own(response)
                yield response

    @contextmanager
    def _client(self, method: str) -> Generator[httpx2.Client]:
        """Yield a client that meanwhile sends nothing else, and is closed with nothing else."""
        idle = self._idle[method]
        try:
            http = idle.pop()
        except IndexError:
            http = self._opened_client()
        try:
            yield http
        finally:
            if not http.is_closed:
                idle.append(http)

    def _started(self, http: httpx2.Client, request: httpx2.Request) -> httpx2.Response:
        """Return the response when its headers have come. Raises `EdgeError` after `PATIENCE` s."""
        since = time.monotonic()

        def give_up() -> None:
            self._clients.discard(http)
            # Only this ends a request that waits in another thread.
            http.close()

        # Neither a line that trickles nor any number of 1xx replies is silence to the client.
        late = Timer(PATIENCE, give_up)
        late.daemon = True
        late.start()
        try:
            return http.send(request, stream=True)
        except Exception:
            self.require_soon(since)
            raise
        finally:
            late.cancel()

    def _require_own(self, response: httpx2.Response) -> None:
        """Raise `EdgeError` for a refused key or a redirect."""
        # Neither shows which program it is, so the address is not tried as another kind of server.
        if response.status_code in (401, 403):
            raise EdgeError(
                f"The edge server at {self.url} refused the key",
                hint="set one that it accepts",
                setting="edge_key",
            )
        if response.is_redirect:
            raise EdgeError(
                f"The edge server at {self.url} redirects elsewhere, and redirects are "
                "not followed",
                hint="give the address it redirects to",
                setting="edge",
            )

    @contextmanager
    def named(self) -> Generator[None]:
        """Context manager that turns connection errors into an `EdgeError` with the URL."""
        try:
            yield
        except ERRORS as error:
            raise self._gone(why(error)) from error

    def _gone(self, why: str) -> EdgeError:
        return EdgeError(
            f"The edge server at {self.url} does not answer ({why})",
            hint="start it again, or name a model's file",
            setting="edge",
        )

    def broken(self, why: str) -> EdgeError:
        """Return the error for a reply that cannot be used; `why` says what is wrong with it."""
        hint = "start a recent version of it, or name a model's file"
        if program := _PROGRAMS.get(urlsplit(self.url).port or 0):
            hint = f"name the model's file by {program}:NAME"
        return EdgeError(
            f"The edge server at {self.url} sent an invalid reply ({why})",
            hint=hint,
            setting="edge",
        )


class Lines:
    """The lines of a streamed response as bytes, without empty lines and comments.

    Iterating raises `EdgeError` once `PATIENCE` seconds pass without a call of `token`.
    """

    def __init__(self, server: Server, response: httpx2.Response) -> None:
        self._server, self._response = server, response
        self._since = time.monotonic()

    def token(self) -> None:
        """Restart the time limit; called by the reader whenever the lines brought a token."""
        self._since = time.monotonic()

    def __iter__(self) -> Generator[bytes]:
        held = b""
        with self._server.named():
            # As it is sent: no encoding was asked for.
            for part in self._response.iter_raw():
                *lines, held = (held + part).split(b"\n")
                if len(held) > _MAX_LINE:
                    raise self._server.broken("a line without an end")
                for line in filter(None, map(bytes.strip, lines)):
                    if not line.startswith(b":"):
                        yield line
                # After each part: comments may come for ever, and no token.
                self._server.require_soon(self._since)
