"""The page of a gateway (`--page`): its files, the edge model that it decodes with, a router."""

import hashlib
import mimetypes
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from edgewise.errors import UsageError
from edgewise.gateway.fleet import Fleet
from edgewise.wire.protocol import VERSION

AT = "/page/"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' blob: 'wasm-unsafe-eval'; worker-src 'self' blob:; "
        "connect-src 'self'; style-src 'self'; img-src 'self' data:; manifest-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    # A browser gives threads (SharedArrayBuffer) only to a page that is isolated by these two.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers of every file below `AT`. Only the gateway's own files run as code, and workers that they
make of themselves (`blob:`); nothing is inline."""

FOLDER = Path(str(files("edgewise.gateway") / "page"))
ENGINE = "engine/wllama.js"
"""The engine that decodes in the browser, in the page's folder: `make web` puts it there."""

_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".gguf": "application/octet-stream",
    ".safetensors": "application/octet-stream",
}
"""Media types that a system's own table may lack, or have wrong."""

_ROUTER = ("config.json", "model.safetensors")


class PageModel(NamedTuple):
    """The GGUF file that a page decodes with, and the fingerprint of its tokenizer.

    `router` is the folder of the router that was trained for it, if there is one.
    """

    name: str
    file: Path
    tokenizer: str
    router: Path | None
    cloud_share: float


class Files(StaticFiles):
    """The page's folder, and `more` files by their paths in it; all with `HEADERS`."""

    def __init__(self, folder: Path, more: Mapping[str, Path]) -> None:
        super().__init__(directory=folder, html=True)
        self._more = more

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        if path in self._more:
            return str(self._more[path]), self._more[path].stat()
        return super().lookup_path(path)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


class Page:
    """Serves the page's files, the model and the router; `config.json` says what there is."""

    def __init__(
        self, model: PageModel, fleet: Fleet, *, keys: bool, folder: Path = FOLDER
    ) -> None:
        """`keys` says whether a page needs one. Raises `UsageError` without an engine."""
        if not (folder / ENGINE).is_file():
            raise UsageError(
                "The page's engine is not built", hint="build it with make web (needs npm)"
            )
        for ending, kind in _TYPES.items():
            mimetypes.add_type(kind, ending)
        self._model, self._fleet, self._keys = model, fleet, keys
        with model.file.open("rb") as opened:
            self._digest = hashlib.file_digest(opened, "sha256").hexdigest()
        more = {"model.gguf": model.file}
        if model.router:
            more |= {f"router/{name}": model.router / name for name in _ROUTER}
        self._files = Files(folder, more)

    def require_same_vocabulary(self) -> None:
        """Raises `UsageError` for another vocabulary than that of the running fleet."""
        if self._model.tokenizer != self._fleet.tokenizer:
            raise UsageError(
                f"The page's model {self._model.name!r} has another vocabulary than the engine's",
                hint="name a GGUF of the engine's family",
                setting="page_model",
            )

    def routes(self) -> list[BaseRoute]:
        """Routes of the page."""
        return [
            Route("/", self._root),
            Route(f"{AT}config.json", self._configured),
            Mount(AT.rstrip("/"), self._files),
        ]

    async def _root(self, request: Request) -> Response:
        return RedirectResponse(AT)

    async def _configured(self, request: Request) -> Response:
        model, fleet = self._model, self._fleet
        # Where there are keys, what the engine is called is for those who have one: /v1/models.
        named = {"model": "", "engine": "cloud"} if self._keys else self._shown()
        gateway = {**named, "tokenizer": fleet.tokenizer, "keys": self._keys}
        described = {
            "name": model.name,
            "url": "model.gguf",
            "bytes": model.file.stat().st_size,
            "sha256": self._digest,
            "tokenizer": model.tokenizer,
        }
        router = {"url": "router/", "files": _ROUTER} if model.router else None
        content = {"protocol": VERSION, "gateway": gateway, "model": described, "router": router}
        return JSONResponse({**content, "cloud_share": model.cloud_share}, headers=HEADERS)

    def _shown(self) -> dict[str, str]:
        """The engine's kind and its model, of a path the last part."""
        return {"model": re.split(r"[/\\]", self._fleet.model)[-1], "engine": self._fleet.engine}
