"""What no endpoint answers: the page's files, or an error that says what would be answered."""

from functools import cached_property
from re import Pattern

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

_READING = ("GET", "HEAD")


class Elsewhere:
    """Mounted behind all of `app`'s endpoints, in front of `page`.

    An endpoint's path with another method is a 405, a path that is none a 404, whatever the method.
    """

    def __init__(self, app: FastAPI, page: ASGIApp) -> None:
        self._app, self._page = app, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._require(scope["method"], scope["path"])
        await self._page(scope, receive, send)

    def _require(self, method: str, path: str) -> None:
        """Raise `HTTPException` where it cannot be one of the page's files."""
        shown = f"{method} {path[:80]!r}"
        for pattern, methods in self._endpoints:
            if pattern.match(path):
                allowed = ", ".join(methods)
                message = f"{shown} is not answered; use {allowed} there."
                raise HTTPException(405, message, headers={"Allow": allowed})
        if method not in _READING or path == "/v1" or path.startswith("/v1/"):
            message = f"{shown} is not answered; GET /openapi.json lists what is."
            raise HTTPException(404, message)

    @cached_property
    def _endpoints(self) -> list[tuple[Pattern[str], list[str]]]:
        """Patterns of the described paths, with their methods."""
        return [
            (compile_path(path)[0], [method.upper() for method in methods])
            for path, methods in self._app.openapi()["paths"].items()
        ]
