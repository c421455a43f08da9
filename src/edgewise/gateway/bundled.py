"""The bundled cloud model as an engine, so that a gateway can be tried with one command."""

import asyncio
from collections.abc import Sequence

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import NOBODY, Client, Described, Engine
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict

SLOTS = 4
DEADLINE = 600.0


class BundledEngine(Engine):
    """Implements `Engine` in this process; a session's prefix stays in the slot it was last in."""

    dialect = "bundled"

    def __init__(self) -> None:
        super().__init__("bundled")
        self._cloud = LocalCloud(LlamaModel(bundled("cloud"), slots=SLOTS))
        self._sessions = [self._cloud.open(Prompt(())) for _ in range(SLOTS)]
        self._owners = [""] * SLOTS
        self._turn = 0

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Verdict:
        session = self._sessions[self._slot(client.session)]
        asked = session.ask(ids, n, sampling, DEADLINE)
        return await asyncio.wrap_future(asked)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        self._sessions[self._slot(client.session)].prefill(ids)

    async def tokenize(self, text: str) -> list[int] | None:
        return self._cloud.model.tokenizer.encode(text)

    async def model_name(self) -> str | None:
        return self._cloud.name

    async def describe(self) -> Described:
        return Described(self._cloud.name, self._cloud.model.tokenizer.size)

    async def ready(self) -> None:
        """It always is."""

    async def close(self) -> None:
        for session in self._sessions:
            session.close()
        await asyncio.to_thread(self._cloud.close)

    def _slot(self, session: str) -> int:
        """The session's own, else the one that has not been given away for longest."""
        if session in self._owners:
            return self._owners.index(session)
        self._turn = (self._turn + 1) % SLOTS
        self._owners[self._turn] = session
        return self._turn
