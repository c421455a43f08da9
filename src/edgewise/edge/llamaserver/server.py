"""Requests to a llama-server on this machine. Whatever goes wrong is an `EdgeError`."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec

from edgewise.errors import EdgeError

_T = TypeVar("_T")

_TIMEOUT = httpx2.Timeout(120.0, connect=5.0)
"""Seconds; a long prompt is read before the first byte comes."""

_MAX_REPLY = 4 << 20
_PROGRAMS = {11434: "ollama", 1234: "lmstudio"}
"""Programs that are not a llama-server, by the port that they listen on."""


class Server:
    """A llama-server over HTTP. Whatever goes wrong is an `EdgeError`."""

    def __init__(self, url: str) -> None:
        self.url = url
        # A proxy of the environment would be sent what is to stay on this machine.
        self._http = httpx2.Client(base_url=url, timeout=_TIMEOUT, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, kind: type[_T]) -> _T:
        """A reply; raises `EdgeError`."""
        return self._reply("GET", path, None, kind)

    def post(self, path: str, body: Mapping[str, Any], kind: type[_T]) -> _T:
        """The reply to a JSON body; raises `EdgeError`."""
        return self._reply("POST", path, body, kind)

    def _reply(self, method: str, path: str, body: Mapping[str, Any] | None, kind: type[_T]) -> _T:
        with self.open(method, path, body) as response, self.named():
            data = b""
            for part in response.iter_bytes():
                data += part
                if len(data) > _MAX_REPLY:
                    raise self.broken(f"a reply of more than {_MAX_REPLY} bytes")
            return self.decoded(data, kind)

    @contextmanager
    def open(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Generator[httpx2.Response]:
        """A response with status 200, whose body was not read; raises `EdgeError`."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        with self.named():
            request = self._http.build_request(method, path, content=content, headers=headers)
            response = self._http.send(request, stream=True)
        try:
            if response.status_code in (401, 403):
                raise EdgeError(
                    f"The edge model's server at {self.url} wants a key",
                    hint="start it without one; it is on this machine",
                    setting="edge",
                )
            if response.status_code != 200:
                raise self.broken(f"HTTP {response.status_code}")
            yield response
        finally:
            response.close()

    @contextmanager
    def named(self) -> Generator[None]:
        """What breaks a connection is an `EdgeError` that names the server."""
        try:
            yield
        except (httpx2.HTTPError, OSError) as error:
            raise EdgeError(
                f"The edge model's server at {self.url} does not answer "
                f"({str(error) or type(error).__name__})",
                hint="start it again, or name a model's file",
                setting="edge",
            ) from error

    def decoded(self, data: bytes, kind: type[_T]) -> _T:
        """JSON from outside; raises `EdgeError`."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.broken(str(error)) from error

    def broken(self, why: str) -> EdgeError:
        """The error for a reply that is not a llama-server's."""
        hint = "give the address of a recent llama-server"
        if program := _PROGRAMS.get(urlsplit(self.url).port or 0):
            hint = f"name the model's file by {program}:NAME"
        return EdgeError(
            f"The edge model's server at {self.url} does not answer as a llama-server ({why})",
            hint=hint,
            setting="edge",
        )
