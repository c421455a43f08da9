"""A stand-in for the model hub on 127.0.0.1: what huggingface_hub asks, and what can go wrong."""

import hashlib
import json
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.programs import python

_API = re.compile(
    r"/api/(?:models/)?(?P<repo>(?:datasets/)?[^/]+/[^/]+)(?:/(?:revision|tree)/(?P<revision>.+))?"
)
_RESOLVE = re.compile(
    r"/(?P<repo>(?:datasets/)?[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)"
)
_NONE: Mapping[str, str] = {}
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass
class Repository:
    """Files of one repository at its one commit, known as `main` and by `tags`.

    A dataset's name begins with `datasets/`.

    Without the token, nothing is known of a `private` one, and of a `gated` one only the names.
    `library` is what its card names, `lies` replace a file's headers behind so many `honest`
    replies, and `listing` is what it is said to be.
    """

    files: Mapping[str, bytes]
    tags: tuple[str, ...] = ()
    private: bool = False
    gated: bool = False
    library: str | None = None
    lies: Mapping[str, str] = field(default_factory=dict)
    honest: int = 0
    listing: object = None

    @property
    def commit(self) -> str:
        """The commit's id."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def knows(self, revision: str) -> bool:
        """Whether a branch, tag or commit of this name exists."""
        return revision in ("main", self.commit, *self.tags)


@dataclass(frozen=True)
class Request:
    """A request as it came; `start` is where its range begins."""

    method: str
    path: str
    start: int | None
    token: str | None


@dataclass
class Hub:
    """What the server knows and has seen. `cuts` counts downloads that it breaks off halfway.

    `status` is answered to everything when set. `bomb`: a listing of so many bytes, without a
    length, compressed where it is `zipped`.
    """

    repositories: dict[str, Repository]
    token: str = "hf_secret"
    cuts: int = 0
    status: int | None = None
    bomb: int = 0
    zipped: bool = False
    endpoint: str = ""
    requests: list[Request] = field(default_factory=list)
    sent: int = 0

    def asked(self, method: str, needle: str = "") -> list[Request]:
        """The requests with this method whose path holds `needle`."""
        return [r for r in self.requests if r.method == method and needle in r.path]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` until the block ends; `hub.endpoint` is for HF_ENDPOINT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def _json(self, described: object, status: int = 200) -> None:
        body = json.dumps(described).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        found = _RANGE.match(self.headers.get("Range", ""))
        start = int(found[1]) if found else None
        bearer = self.headers.get("Authorization")
        token = bearer.removeprefix("Bearer ") if bearer else None
        self.hub.requests.append(Request(self.command, path, start, token))
        if self.hub.status is not None:
            return self._fail(self.hub.status, None)
        match = _API.fullmatch(path) or _RESOLVE.fullmatch(path)
        repository = self.hub.repositories.get(match["repo"]) if match else None
        if not match or repository is None or (repository.private and token != self.hub.token):
            # The hub hides whether a repository exists from those who may not read it.
            return self._fail(404 if token == self.hub.token else 401, "RepoNotFound")
        if not repository.knows(unquote(match["revision"] or "main")):
            return self._fail(404, "RevisionNotFound")
        if match.re is _RESOLVE:
            if repository.gated and token != self.hub.token:
                return self._fail(403, "GatedRepo")
            return self._file(repository, unquote(match["file"]), start)
        return self._describe(match["repo"], repository, tree="/tree/" in path)

    def _describe(self, name: str, repository: Repository, *, tree: bool) -> None:
        described: object = {
            "id": name,
            "sha": repository.commit,
            "private": repository.private,
            "library_name": repository.library,
            "siblings": [{"rfilename": file} for file in repository.files],
        }
        if tree:
            described = [
                {"type": "file", "path": file, "size": len(data), "oid": _etag(data)}
                for file, data in repository.files.items()
            ]
        if self.hub.bomb:
            return self._bomb()
        return self._json(described if repository.listing is None else repository.listing)

    def _bomb(self) -> None:
        """A listing that is too long to be one; what the device does not read stays here."""
        self.close_connection = True
        encoding = {"Content-Encoding": "gzip"} if self.hub.zipped else {}
        self._head(200, {"Content-Type": "application/json", "Connection": "close", **encoding})
        packer = zlib.compressobj(wbits=31)
        with suppress(OSError):
            for _ in range(self.hub.bomb >> 20):
                block = b" " * (1 << 20)
                self.wfile.write(packer.compress(block) if self.hub.zipped else block)
                self.hub.sent += 1 << 20

    def _file(self, repository: Repository, name: str, start: int | None) -> None:
        commit = {"X-Repo-Commit": repository.commit}
        data = repository.files.get(name)
        lies = {} if repository.honest > 0 else repository.lies
        repository.honest -= 1
        if data is None:
            return self._fail(404, "EntryNotFound", commit | lies)
        sent = data[start or 0 :]
        headers = {
            **commit,
            "ETag": f'"{_etag(data)}"',
            "X-Linked-Size": str(len(data)),
            "Accept-Ranges": "bytes",
            "Content-Length": str(len(sent)),
        }
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        headers |= lies
        moved = "Location" in headers
        self._head(302 if moved else 200 if start is None else 206, headers)
        if moved or "Content-Length" in lies:
            self.close_connection = True
        if moved or self.command == "HEAD":
            return None
        if self.hub.cuts:
            self.hub.cuts -= 1
            self.close_connection = True
            sent = sent[: len(sent) // 2]
        self.wfile.write(sent)
        return None

    def _fail(self, status: int, code: str | None, headers: Mapping[str, str] = _NONE) -> None:
        named = {"X-Error-Code": code} if code else {}
        self._head(status, {**headers, **named, "Content-Length": "0"})

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_SCRIPT = """
import json, sys
from edgewise.addresses import resolve
from edgewise.errors import AddressError
found = []
for address in json.loads(sys.argv[1]):
    try:
        found.append({expression})
    except AddressError as error:
        found.append(f"! {{error}}")
print(json.dumps(found))
"""


def in_a_process(
    home: Path,
    endpoint: str,
    expression: str,
    *addresses: str,
    module: str = "edgewise.addresses",
    **more: str,
) -> list[Any]:
    """What an expression of each `address` is in a fresh process; errors start with "! "."""
    script = f"from {module} import *\n" + _SCRIPT.format(expression=expression)
    here = {"folder": Path(__file__).parents[1], "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    done = python("-W", "error", "-c", script, json.dumps(addresses), **here, **more)
    return json.loads(done.stdout)
