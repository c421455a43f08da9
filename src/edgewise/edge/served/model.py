"""The edge engine `server`: an edge model in a server that already runs, such as llama-server.

The weights are not loaded again. Only the tokenizer is loaded here, and compared with the server's.
"""

import hashlib
import secrets
from contextlib import closing
from pathlib import Path
from threading import BoundedSemaphore

from edgewise.addresses import Role, resolve, with_scheme, without_endpoint
from edgewise.edge.base import PROBES, EdgeAbilities, EdgeModel, EdgeOptions, Needs, Tokenizer
from edgewise.edge.files import fingerprint_of
from edgewise.edge.named import open_tokenizer
from edgewise.edge.served.dialect import Dialect, described_at, found_at
from edgewise.edge.served.server import Server
from edgewise.edge.served.session import ServedSession
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import AddressError, EdgeError, ModelError, UsageError
from edgewise.servers.base import LONGEST_NAME


def open_server(address: str, options: EdgeOptions) -> "ServedEdge":
    """Open the edge model that a server at a URL runs.

    Raises `UsageError` for a URL or options that do not fit, or if the model's tokenizer is missing
    or another than the server's; `EdgeError` if the server does not answer as it should.
    """
    if options.threads is not None or options.gpu_layers != "auto":
        raise UsageError(
            "threads and gpu-layers do not apply to an edge model at a URL",
            hint="set them on the server",
            setting="threads" if options.threads is not None else "gpu_layers",
        )
    url = without_endpoint(with_scheme(address))
    server = Server(url, key=options.key, sent=options.sent)
    try:
        return ServedEdge(found_at(server, options.model, options.context), options)
    except BaseException:
        server.close()
        raise


class ServedEdge(EdgeModel):
    """An edge model that a server runs; each session reads a stream of the server's tokens."""

    def __init__(self, dialect: Dialect, options: EdgeOptions) -> None:
        described, kind, slots = dialect.described, dialect.kind, options.slots
        if described.slots is not None and slots > described.slots:
            raise UsageError(
                f"The edge server has {described.slots} slots, and {slots} are needed",
                hint="start it with more",
                setting="edge",
            )
        self._dialect, self._asked = dialect, (options.model, options.context)
        self.name, self.build = described.name, kind.program
        self.parameters, self.hidden_size = described.parameters, described.hidden_size
        self._free = BoundedSemaphore(slots)
        self.abilities = EdgeAbilities(
            hidden=False, logits=False, batch_logits=False, text=kind.takes_text, slots=slots
        )
        here = _on_this_disk(described.address, "edge")
        self.path = here if here is not None and here.is_file() else None
        vocabulary = here or _on_this_disk(described.address, "cloud_tokenizer")
        self.tokenizer = dialect.tokenizer = _tokenizer(dialect, options.tokenizer, vocabulary)
        if not dialect.vocabulary_matches():
            raise ModelError(
                f"The edge server at {dialect.server.url} has another vocabulary than the "
                f"tokenizer that was found for {self.name[:LONGEST_NAME]!r}",
                hint="name its own, or start the server again if the model's file has changed",
                setting="edge_tokenizer",
            )
        self.context = dialect.context()

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> ServedSession:
        # First, as it may raise: what is not made must not hold a slot.
        session = ServedSession(
            self, self._dialect, needs, top, release=self._free.release, check=self._require_same
        )
        if not self._free.acquire(blocking=False):
            raise UsageError(
                f"All {self.abilities.slots} slots of {self.name!r} are taken",
                hint="close a session",
                setting="slots",
            )
        return session

    def _require_same(self) -> None:
        """Raise `EdgeError` if another program or model answers at the address by now."""
        dialect, (model, context) = self._dialect, self._asked
        if dialect.described.slots is None:  # llama-server's name is its file's
            model = dialect.described.name
        try:
            found = described_at(dialect.kind, dialect.server, model, context)
        except UsageError as error:
            raise EdgeError(str(error), setting="edge") from error
        if found != dialect.described:
            raise EdgeError(
                f"The edge server at {dialect.server.url} serves another model than at the start",
                hint="start Edgewise again",
                setting="edge",
            )

    def change(self) -> tuple[int, int, int | None] | None:
        """Measure what the server computes again after the cloud changes a token.

        A stream is closed after one token, then its prompt is sent with another last id. Returns
        the length of the prompt, how many of its ids the server then computed, and how many tokens
        of the closed stream were written but not read (None: unknown). Returns None if the server
        does not report how many ids it computed.
        """
        dialect, seed = self._dialect, secrets.randbits(31)
        ids = self.tokenizer.encode_prompt(" ".join(PROBES))[: self.context - 1]
        most = self.context - len(ids)
        with closing(dialect.stream(ids, most, dialect.kind.top, seed)) as stream:
            next(stream, None)
        written = dialect.overrun(seed)
        again = dialect.computed([*ids[:-1], ids[0]])
        return None if again is None else (len(ids), again, written and written - 1)

    def fingerprint(self) -> str:
        """Return a hash of the weights file if it is on this disk.

        If not, the hash is of the server's kind, the model's name and its vocabulary.
        """
        if self.path is not None:
            return fingerprint_of(self.path)
        named = f"{self.build}\0{self.name}\0{fingerprint(self.tokenizer)}"
        return hashlib.sha256(named.encode()).hexdigest()

    def close(self) -> None:
        self._dialect.server.close()


def _tokenizer(dialect: Dialect, named: str | None, here: Path | None) -> Tokenizer:
    """Open the tokenizer at the address `named`, else that at the path `here`, or raise."""
    place = named or (here and str(here))
    if place is None:
        raise ModelError(
            f"The edge server at {dialect.server.url} serves "
            f"{dialect.described.address[:200]!r}, which is not on this disk, and its tokenizer is "
            "needed here",
            hint="name a GGUF of the model, its folder or its repository",
            setting="edge_tokenizer",
        )
    try:
        return open_tokenizer(place)
    except UsageError as error:
        error.setting = "edge_tokenizer"
        raise


def _on_this_disk(address: str, role: Role) -> Path | None:
    """Return the served model's path; None if it is not on this disk."""
    try:
        if address.startswith(("ollama:", "lmstudio:")):
            return resolve(address, role)
        path = Path(address).resolve()
        return path if path.exists() else None
    except (AddressError, OSError, ValueError):
        return None  # a name that no file has
