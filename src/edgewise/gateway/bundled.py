"""The bundled cloud model as an engine: a gateway to try, by one command."""

import asyncio
from collections.abc import Sequence

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud, LocalSession
from edgewise.completion import Completion
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client, Described, Engine
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

SLOTS = 4
DEADLINE = 600.0


class BundledEngine(Engine):
    """Implements `Engine` in this process; a session's prefix stays in the slot it was last in.

    A slot that is given to another tenant's session forgets what it holds.
    """

    dialect = "bundled"

    def __init__(self) -> None:
        super().__init__("bundled")
        self._cloud = LocalCloud(LlamaModel(bundled("cloud"), slots=SLOTS))
        self._sessions = [self._cloud.open(Prompt(())) for _ in range(SLOTS)]
        self._owners = [NOBODY] * SLOTS
        self._turn = 0

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        asked = self._session(client).ask(ids, n, sampling, DEADLINE)
        return await asyncio.wrap_future(asked)

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
        """It always is."""

    async def close(self) -> None:
        for session in self._sessions:
            session.close()
        await asyncio.to_thread(self._cloud.close)

    def _session(self, client: Client) -> LocalSession:
        """The client's own slot, else the one that was assigned longest ago."""
        for session, owner in zip(self._sessions, self._owners, strict=True):
            if (owner.tenant, owner.session) == (client.tenant, client.session):
                return session
        self._turn = (self._turn + 1) % SLOTS
        if self._owners[self._turn].tenant != client.tenant:
            self._sessions[self._turn].forget()
        self._owners[self._turn] = client
        return self._sessions[self._turn]
