"""The gateway's web page (`--page`), which decodes in the browser: its files, model and router."""

import asyncio
import hashlib
import io
import mimetypes
import re
import threading
from collections.abc import AsyncGenerator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Route

from edgewise.errors import UsageError
from edgewise.gateway.fleet import Fleet
from edgewise.wire.protocol import VERSION

AT = "/page/"
"""Path below which the gateway serves the page."""

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
"""Response headers of every file below `AT`. The browser runs only the gateway's own files, and
workers that these create (`blob:`); inline scripts and styles are forbidden."""

FOLDER = Path(str(files("edgewise.gateway") / "page"))
ENGINE = "engine/wllama.js"
"""File in `FOLDER` of the engine that decodes in the browser; `make web` puts it there."""

# Media types that a system's own table may lack, or have wrong.
_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".gguf": "application/octet-stream",
    ".safetensors": "application/octet-stream",
}

SMALL = 1 << 23
"""Bytes of the largest file that is kept in memory."""

PIECE = 1 << 16
"""Bytes that are read from a file at a time."""

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")

_ROUTER = ("config.json", "model.safetensors")


class PageModel(NamedTuple):
    """The edge model of the page: its GGUF `file` and the `name` to show.

    `tokenizer` is its vocabulary's fingerprint, `router` the folder of its router (None: a router
    that needs no training), `cloud_share` the share of tokens that the cloud model may write.
    """

    name: str
    file: Path
    tokenizer: str
    router: Path | None
    cloud_share: float


class PageFile:
    """A file of the page, kept in memory if small: `size` in bytes, `digest` its SHA-256 (hex)."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self._file = io.BytesIO(path.read_bytes()) if status.st_size <= SMALL else path.open("rb")
        self._reading = threading.Lock()
        self.size = status.st_size
        self.digest = hashlib.file_digest(self._file, "sha256").hexdigest()
        self._kind = mimetypes.guess_type(path.name)[0]
        self._headers = {**HEADERS, "Accept-Ranges": "bytes", "ETag": f'"{self.digest}"'}

    def response(self, asked: Headers, *, head: bool = False) -> Response:
        """Return the response to a request with the headers `asked`.

        It has the whole file, the part that `Range` names (206, or 416 for a part beyond the end),
        or no body if the client's copy is current (304). `head`: headers only.
        """
        tag, headers = self._headers["ETag"], dict(self._headers)
        if tag in asked.get("if-none-match", ""):
            return Response(None, 304, headers)
        status, begin, end = 200, 0, self.size
        # The rest of a file that has changed would not fit the part that the browser has.
        named = _RANGE.fullmatch(asked.get("range", ""))
        if named and named[0] != "bytes=-" and asked.get("if-range", tag) == tag:
            first, last = (int(given) if given else None for given in named.groups())
            begin = max(0, end - (last or 0)) if first is None else first
            if first is not None and last is not None:
                end = min(end, last + 1)
            if begin >= end:
                return Response(None, 416, {**headers, "Content-Range": f"bytes */{self.size}"})
            status, headers["Content-Range"] = 206, f"bytes {begin}-{end - 1}/{self.size}"
        headers["Content-Length"] = str(end - begin)
        if head:
            return Response(None, status, headers, self._kind)
        return StreamingResponse(self._pieces(begin, end), status, headers, self._kind)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def _pieces(self, at: int, end: int) -> AsyncGenerator[bytes]:
        while at < end:
            piece = await asyncio.to_thread(self._read, at, min(PIECE, end - at))
            if not piece:
                # The headers promised its length: a cut connection tells the browser.
                raise RuntimeError("a file of the page has become shorter")
            at += len(piece)
            yield piece

    def _read(self, at: int, count: int) -> bytes:
        # Of one descriptor, whose position all readers share.
        with self._reading:
            self._file.seek(at)
            return self._file.read(count)


class Page:
    """Serves the page's files, its edge model and router, and `config.json`, which names these."""

    def __init__(
        self, model: PageModel, fleet: Fleet, *, keys: bool, folder: Path = FOLDER
    ) -> None:
        """`keys` says whether the page's user must enter an API key of the gateway.

        `folder` holds the page's files. Raises `UsageError` if `ENGINE` is missing there.
        """
        if not (folder / ENGINE).is_file():
            raise UsageError(
                "The page's engine is not built", hint="build it with make web (needs npm)"
            )
        for ending, kind in _TYPES.items():
            mimetypes.add_type(kind, ending)
        self._model, self._fleet, self._keys = model, fleet, keys
        # Listed once: no path of a request is ever looked up on the disk.
        paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        paths |= {"": folder / "index.html", "model.gguf": model.file}
        if model.router:
            paths |= {f"router/{name}": model.router / name for name in _ROUTER}
        self._files = {name: PageFile(path) for name, path in paths.items() if path.is_file()}

    def require_same_vocabulary(self) -> None:
        """Raise `UsageError` if the page's model and the engines have different vocabularies."""
        if self._model.tokenizer != self._fleet.tokenizer:
            raise UsageError(
                f"The page's model {self._model.name!r} has another vocabulary than the engine's",
                hint="name a GGUF of the engine's family",
                setting="page_model",
            )

    def close(self) -> None:
        """Close the page's files."""
        for file in self._files.values():
            file.close()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of `/` (redirects to the page) and of everything below /page/."""
        return [
            Route("/", self._root),
            Route(f"{AT}config.json", self._configured),
            Route(f"{AT}{{path:path}}", self._sent),
        ]

    async def _root(self, request: Request) -> Response:
        return RedirectResponse(AT)

    async def _sent(self, request: Request) -> Response:
        if file := self._files.get(request.path_params["path"]):
            return file.response(request.headers, head=request.method == "HEAD")
        return PlainTextResponse("The page has no such file.", 404, HEADERS)

    async def _configured(self, request: Request) -> Response:
        model, fleet = self._model, self._fleet
        # Where there are keys, what the engine is called is for those who have one: /v1/models.
        named = {"model": "", "engine": "cloud"} if self._keys else self._shown()
        gateway = {**named, "tokenizer": fleet.tokenizer, "keys": self._keys}
        described = {
            "name": model.name,
            "url": "model.gguf",
            "bytes": self._files["model.gguf"].size,
            "sha256": self._files["model.gguf"].digest,
            "tokenizer": model.tokenizer,
        }
        router = {"url": "router/", "files": _ROUTER} if model.router else None
        content = {"protocol": VERSION, "gateway": gateway, "model": described, "router": router}
        return JSONResponse({**content, "cloud_share": model.cloud_share}, headers=HEADERS)

    def _shown(self) -> dict[str, str]:
        """Return the engine's type and the name of its model, without the folders of a path."""
        return {"model": re.split(r"[/\\]", self._fleet.model)[-1], "engine": self._fleet.engine}
