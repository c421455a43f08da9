"""An engine that runs a GGUF model in the gateway's own process, without another server."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from edgewise.addresses import resolve
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Completion
from edgewise.edge.base import EdgeOptions
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client, Described, Engine
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

SLOTS = 4
"""Default number of sessions whose KV cache is kept; they share llama.cpp's forward passes."""

DEADLINE = 600.0
"""Seconds that a request to the model may take."""


class LocalEngine(Engine):
    """A GGUF model in this process. Implements `Engine`.

    Each of the `slots` keeps the KV cache of one session. A new session takes the least recently
    used slot, which is cleared if it belonged to another tenant (another key of the gateway).
    """

    dialect = "llama.cpp"
    verifies = reads_once = True

    def __init__(
        self, address: str = "bundled", options: EdgeOptions | None = None, *, slots: int = SLOTS
    ) -> None:
        """Load the model at `address`: a file, owner/repo or "bundled". Raises `UsageError`."""
        super().__init__(address)
        self._cloud = LocalCloud(LlamaModel(resolve(address, "cloud"), options, slots=slots))
        # By tenant and session, the least recently used first.
        self._sessions = OrderedDict(
            (("", f"free {number}"), self._cloud.open(Prompt(()))) for number in range(slots)
        )
        # The first pass reads the weights from the disk, for longer than a health check waits.
        next(iter(self._sessions.values())).ask(ConsultRequest([0], 1, DEADLINE)).result()

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        return await self._asked(ConsultRequest(ids, n, DEADLINE, sampling), client)

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        asked = ConsultRequest(ids, 0, DEADLINE, sampling, verify=count)
        return await self._asked(asked, client)

    async def tokenize(self, text: str) -> list[int] | None:
        return self._cloud.model.tokenizer.encode(text)

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        known = self._cloud.model.tokenizer
        special = known.special
        pieces = [special[t].encode() if t in special else known.piece(t) for t in ids]
        return b"".join(pieces).decode("utf-8", "replace")

    async def end_text(self) -> str | None:
        return self._cloud.model.tokenizer.special_text("eos")

    async def describe(self) -> Described:
        return Described(self._cloud.name, self._cloud.model.tokenizer.size)

    async def ready(self) -> None:
        """Return at once: a loaded model is always ready."""

    async def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        await asyncio.to_thread(self._cloud.close)

    async def _asked(self, request: ConsultRequest, client: Client) -> Completion:
        """Run a request in the client's own slot, else in the least recently used one."""
        owner = client.tenant, client.session
        if owner not in self._sessions:
            (tenant, _), session = self._sessions.popitem(last=False)
            # By how fast a prompt is read one tenant could tell what another asked.
            if tenant != client.tenant:
                session.forget()
            self._sessions[owner] = session
        self._sessions.move_to_end(owner)
        return await asyncio.wrap_future(self._sessions[owner].ask(request))
