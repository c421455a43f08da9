"""Requests to the server that runs the edge model. Whatever goes wrong is an `EdgeError`."""

import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec

from edgewise.errors import EdgeError

_T = TypeVar("_T")

PATIENCE = 120.0
"""Most seconds between two tokens, or until a reply is whole: a long prompt is read before."""

_CONNECTING = 5.0
_MAX_REPLY, _MAX_LINE = 4 << 20, 1 << 20
_PROGRAMS = {11434: "ollama", 1234: "lmstudio"}
"""Programs whose models are files on their disk, by the port that they listen on."""

Body = Mapping[str, Any]


class Server:
    """JSON over HTTP. `https` is verified; no redirect is followed, and no proxy is used."""

    def __init__(
        self, url: str, *, key: str | None = None, sent: Callable[[str, bytes], None] | None = None
    ) -> None:
        self.url, self._record = url, sent
        # A proxy of the environment would be sent what is to stay near.
        self._http = httpx2.Client(
            base_url=url,
            timeout=httpx2.Timeout(PATIENCE, connect=_CONNECTING),
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context(),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, kind: type[_T]) -> _T | None:
        """GET `path`; None unless the status is 200 and the body decodes as `kind`."""
        with self._sent("GET", path, None) as response:
            data = self._whole(response) if response.status_code == 200 else b""
        with suppress(EdgeError):
            return self.decoded(data, kind)
        return None

    def post(self, path: str, body: Body, kind: type[_T]) -> _T:
        """The reply to a JSON body; raises `EdgeError`."""
        with self._opened(path, body) as response:
            return self.decoded(self._whole(response), kind)

    @contextmanager
    def lines(self, path: str, body: Body) -> Generator[Iterator[bytes]]:
        """The lines of the reply to a JSON body, as they come; raises `EdgeError`.

        Lines without content, and comments, are left out: they hold no answer up for ever.
        """
        with self._opened(path, body) as response:
            yield self._lines(response)

    def _lines(self, response: httpx2.Response) -> Generator[bytes]:
        held, since = b"", time.monotonic()
        with self._named():
            for part in response.iter_bytes():
                *lines, held = (held + part).split(b"\n")
                if len(held) > _MAX_LINE:
                    raise self.broken("a line without an end")
                for line in filter(None, map(bytes.strip, lines)):
                    if not line.startswith(b":"):
                        yield line
                        since = time.monotonic()
                self._require_soon(since)

    def _whole(self, response: httpx2.Response) -> bytes:
        data, since = b"", time.monotonic()
        with self._named():
            for part in response.iter_bytes():
                data += part
                if len(data) > _MAX_REPLY:
                    raise self.broken(f"a reply of more than {_MAX_REPLY} bytes")
                self._require_soon(since)
        return data

    def _require_soon(self, since: float) -> None:
        if time.monotonic() - since > PATIENCE:
            raise self._gone(f"no token for {PATIENCE:g} s")

    @contextmanager
    def _opened(self, path: str, body: Body) -> Generator[httpx2.Response]:
        """A response with status 200, whose body was not read; raises `EdgeError`."""
        with self._sent("POST", path, body) as response:
            if response.status_code != 200:
                said = self._whole(response)[:200].decode("utf-8", "replace")
                raise self.broken(f"HTTP {response.status_code}: {said!r}")
            yield response

    @contextmanager
    def _sent(self, method: str, path: str, body: Body | None) -> Generator[httpx2.Response]:
        content = None if body is None else msgspec.json.encode(body)
        if content is not None and self._record is not None:
            self._record(urlsplit(self.url).netloc, content)
        headers = {"Content-Type": "application/json"}
        with self._named():
            request = self._http.build_request(method, path, content=content, headers=headers)
            response = self._http.send(request, stream=True)
        try:
            self._require_own(response)
            yield response
        finally:
            response.close()

    def _require_own(self, response: httpx2.Response) -> None:
        """Neither a key that is missing nor a redirect is a server of another kind."""
        if response.status_code in (401, 403):
            raise EdgeError(
                f"The edge model's server at {self.url} refused the key",
                hint="set one that it accepts",
                setting="edge_key",
            )
        if response.is_redirect:
            raise EdgeError(
                f"The edge model's server at {self.url} redirects elsewhere, and no redirect is "
                "followed",
                hint="give the address that it leads to",
                setting="edge",
            )

    @contextmanager
    def _named(self) -> Generator[None]:
        """Turns connection errors into an `EdgeError` that names the server."""
        try:
            yield
        except (httpx2.HTTPError, OSError) as error:
            raise self._gone(str(error) or type(error).__name__) from error

    def _gone(self, why: str) -> EdgeError:
        return EdgeError(
            f"The edge model's server at {self.url} does not answer ({why})",
            hint="start it again, or name a model's file",
            setting="edge",
        )

    def decoded(self, data: bytes, kind: type[_T]) -> _T:
        """JSON from outside; raises `EdgeError`."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.broken(str(error)) from error

    def broken(self, why: str) -> EdgeError:
        """The error for a reply that cannot be used."""
        hint = "start a recent version of it, or name a model's file"
        if program := _PROGRAMS.get(urlsplit(self.url).port or 0):
            hint = f"name the model's file by {program}:NAME"
        return EdgeError(
            f"The edge model's server at {self.url} sent what no answer can be made of ({why})",
            hint=hint,
            setting="edge",
        )
