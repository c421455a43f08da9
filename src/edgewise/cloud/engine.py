"""A cloud model behind an engine's URL: the engine's asyncio code on an I/O thread."""

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future

from msgspec.structs import replace

from edgewise.cloud.base import CloudSession
from edgewise.cloud.io_thread import RemoteCloud
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import PROBE_SECONDS, Abilities, Client, Engine
from edgewise.engines.detokenization import COMPARE_SECONDS, compare_all
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.vocabulary_check import VocabularyCheck
from edgewise.errors import CloudRejected
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.wire.protocol import request_id


class EngineCloud(RemoteCloud):
    """Implements `CloudModel` over an engine.

    Once checked, it is checked again after a reconnect: see `VocabularyCheck`.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.url)
        self.engine = engine
        self._check: VocabularyCheck | None = None

    @property
    def abilities(self) -> Abilities:
        return self.engine.abilities

    def identity(self) -> str:
        able = self.engine.abilities
        return f"{self.name} {able.engine} {able.model or ''}"

    def open(self, prompt: Prompt) -> "EngineSession":
        return EngineSession(self)

    def check(self, tokenizer: Tokenizer) -> str:
        """Probe the engine; compare the ids of fixed strings, and where it can a sample of all."""
        check = VocabularyCheck(self.engine, lambda: self._accept(tokenizer))
        self.check_remotely(check.run(), PROBE_SECONDS + COMPARE_SECONDS, tokenizer)
        self._check = check
        return self.vocabulary_check

    async def complete(
        self, ids: list[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        """One consult: the whole prefix goes, the engine's prefix cache does the reuse."""
        if not ids:
            raise CloudRejected("A consult needs at least one id before it.")
        complete = self.engine.complete if self._check is None else self._check.complete
        return self.checked(await complete(ids, n, sampling, client), n, len(ids))

    async def _accept(self, tokenizer: Tokenizer) -> None:
        strings = self.engine.compare_strings(tokenizer)
        self.vocabulary_check = strings + await compare_all(self.engine, tokenizer)

    async def _hang_up(self) -> None:
        await self.engine.close()


class EngineSession(CloudSession):
    """Implements `CloudSession`: the full prefix goes with each consult."""

    def __init__(self, cloud: EngineCloud) -> None:
        self._cloud = cloud
        self._client = Client(session=secrets.token_hex(12))
        self._asks = 0

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Completion]:
        self._asks += 1
        name = request_id(self._client.session, self._asks)
        if sent is not None:
            sent.request_id = name
        end = time.monotonic() + deadline
        client = replace(self._client, sent=sent, request_id=name, end=end)
        work = self._cloud.complete(list(ids), n, sampling, client)
        return self._cloud.submit(work, deadline)


class LlamaServer(EngineCloud):
    """A llama-server at a URL. `https` is verified; the key travels as a bearer token."""

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(LlamaServerEngine(url, key=key, model=model))
