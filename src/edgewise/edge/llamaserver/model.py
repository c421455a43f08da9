"""An edge model in a llama-server that already runs on this machine, on whatever hardware it uses.

Weights are not loaded again: only the tokenizer is read, from the GGUF file that the server names.
"""

from ipaddress import ip_address
from pathlib import Path
from threading import BoundedSemaphore
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from edgewise.addresses import with_scheme
from edgewise.edge.base import PROBES, EdgeAbilities, EdgeModel, EdgeOptions, Needs, Tokenizer
from edgewise.edge.llamacpp.model import fingerprint_of
from edgewise.edge.llamaserver.server import Server
from edgewise.edge.llamaserver.session import ServedSession
from edgewise.edge.named import open_tokenizer
from edgewise.errors import AddressError, ModelError, UsageError

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class _Generation(msgspec.Struct):
    n_ctx: _Count


class _Props(msgspec.Struct):
    model_path: str
    total_slots: _Count
    default_generation_settings: _Generation


class _Meta(msgspec.Struct):
    n_vocab: int | None = None
    n_embd: int = 0
    n_params: int | None = None


class _Model(msgspec.Struct):
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Ids(msgspec.Struct):
    tokens: list[int]


def open_server(address: str, options: EdgeOptions) -> "ServedEdge":
    """The edge engine `llama-server`. Raises `UsageError`, or `EdgeError` where none answers."""
    if options.threads is not None or options.gpu_layers != "auto":
        raise UsageError(
            "Threads and GPU layers are the server's own where the edge model is at a URL",
            hint="start the server with them",
            setting="threads" if options.threads is not None else "gpu_layers",
        )
    url = with_scheme(address).rstrip("/").removesuffix("/v1")
    _require_here(url)
    server = Server(url)
    try:
        return ServedEdge(server, options)
    except BaseException:
        server.close()
        raise


def _require_here(url: str) -> None:
    """Prompts go to this machine only, and the model's file is on its disk."""
    if not _is_here(url):
        raise AddressError(
            "The edge model's server must be on this machine",
            hint="give http://127.0.0.1:PORT; a model elsewhere can be the cloud",
            setting="edge",
        )


def _is_here(url: str) -> bool:
    """Whether it is a loopback address, and nothing else is in it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        plain = parts.netloc.rpartition("@")[1] == "" and not parts.query and not parts.fragment
        return plain and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False


class ServedEdge(EdgeModel):
    """Implements `EdgeModel`: sessions are streams, a rollback asks again from the prefix.

    Steps have the likeliest ids alone, and no hidden state. The server keeps the KV cache.
    """

    build = "llama-server"

    def __init__(self, server: Server, options: EdgeOptions) -> None:
        self._server = server
        props = server.get("/props", _Props)
        meta = next((m.meta for m in server.get("/v1/models", _Models).data if m.meta), _Meta())
        self.path = _file(props.model_path, server.url)
        self.name = self.path.stem
        self.parameters, self.hidden_size = meta.n_params, meta.n_embd
        # One place is for the token that the server writes.
        self.context = _context(props.default_generation_settings.n_ctx - 1, options.context)
        if options.slots > props.total_slots:
            raise UsageError(
                f"The edge model's server has {props.total_slots} slots, and {options.slots} are "
                "needed",
                hint="start it with more",
                setting="edge",
            )
        self._free = BoundedSemaphore(options.slots)
        self.abilities = EdgeAbilities(hidden=False, batch_logits=False, slots=options.slots)
        self.tokenizer = open_tokenizer(str(self.path))
        self._check(self.tokenizer, meta.n_vocab)

    def _check(self, tokenizer: Tokenizer, size: int | None) -> None:
        """The file may have changed since the server read it."""
        same = size in (None, tokenizer.size)
        for text in PROBES if same else ():
            body = {"content": text, "add_special": False, "parse_special": False}
            ids = self._server.post("/tokenize", body, _Ids).tokens
            same = same and ids == tokenizer.encode(text)
        if not same:
            raise ModelError(
                f"The edge model's server at {self._server.url} has another vocabulary than "
                f"{str(self.path)!r}, which it says it serves",
                hint="start it again",
                setting="edge",
            )

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> ServedSession:
        if Needs.HIDDEN in needs:
            raise UsageError(
                f"The server of {self.name!r} hands out no hidden states",
                hint="choose a router that reads none, such as entropy",
                setting="router",
            )
        if not self._free.acquire(blocking=False):
            raise UsageError(
                f"All {self.abilities.slots} slots of {self.name!r} are taken",
                hint="close a session",
                setting="slots",
            )
        return ServedSession(
            self._server,
            self.tokenizer,
            self.context,
            text=Needs.TEXT in needs,
            top=top,
            release=self._free.release,
        )

    def fingerprint(self) -> str:
        return fingerprint_of(self.path)

    def close(self) -> None:
        self._server.close()


def _file(name: str, url: str) -> Path:
    """The GGUF that the server names: a file here, never an address."""
    try:
        path = Path(name).resolve()
        if path.is_file():
            return path
    except (OSError, ValueError):
        pass  # a name that no file can have
    raise ModelError(
        f"The edge model's server at {url} serves {name[:200]!r}, which is not a file on this "
        "machine, and its tokenizer is read from there",
        hint="start the server with an absolute path",
        setting="edge",
    )


def _context(held: int, wanted: int | None) -> int:
    if wanted is not None and wanted > held:
        raise UsageError(
            f"The edge model's server holds {held} tokens a slot, not {wanted}",
            hint="start it with a larger context, or lower yours",
            setting="ctx",
        )
    return wanted or held
