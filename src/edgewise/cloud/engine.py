"""A cloud model behind an engine's URL: the engine's asyncio code on an I/O thread."""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, require_meant, with_end
from edgewise.cloud.io_thread import IoThread
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import PROBE_SECONDS, Abilities, Client, Engine
from edgewise.engines.detokenization import COMPARE_SECONDS, compare_all, spelling_of
from edgewise.engines.http import HttpEngine
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.sglang import SglangEngine
from edgewise.engines.vllm import VllmEngine
from edgewise.engines.vocabulary_check import VocabularyCheck
from edgewise.errors import CloudRejected
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.wire.protocol import request_id

_T = TypeVar("_T")


class EngineCloud(CloudModel):
    """Implements `CloudModel` over an engine, with an I/O thread of its own.

    Once checked, it is checked again after a reconnect: see `VocabularyCheck`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.url
        self._eos_ids = frozenset([0])
        self._size: int | None = None
        self._nothing = frozenset[int]()
        self._check: VocabularyCheck | None = None
        self._io = IoThread(self.name)

    @property
    def abilities(self) -> Abilities:
        return self.engine.abilities

    def identity(self) -> str:
        able = self.engine.abilities
        return f"{self.name} {able.engine} {able.model or ''}"

    def open(self, prompt: Prompt) -> "EngineSession":
        return EngineSession(self)

    def check(self, tokenizer: Tokenizer) -> str:
        """Probe the engine; compare the ids of fixed strings, and where it can all ids."""
        # Reading a vocabulary would hold the I/O thread up.
        nothing = spelling_of(tokenizer).nothing
        check = VocabularyCheck(self.engine, lambda: self._prove(tokenizer))
        self.submit(check.run(), PROBE_SECONDS + COMPARE_SECONDS).result()
        self._check = check
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self._size, self._nothing = tokenizer.size, nothing
        return self.proof

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    async def complete(
        self, ids: list[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        """One consult: the whole prefix goes, the engine's prefix cache does the reuse."""
        if not ids:
            raise CloudRejected("A consult needs at least one id before it.")
        complete = self.engine.complete if self._check is None else self._check.complete
        completion = with_end(await complete(ids, n, sampling, client), n, self._eos_ids, self.name)
        completion.check(asked=n, prompt=len(ids), size=self._size)
        require_meant(completion, self._nothing, self.name)
        return completion

    def close(self) -> None:
        self._io.close(asyncio.sleep(0), self.engine.close())

    async def _prove(self, tokenizer: Tokenizer) -> None:
        strings = self.engine.prove(tokenizer)
        self.proof = strings + await compare_all(self.engine, tokenizer)


class EngineSession:
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

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return 0

    def close(self) -> None:
        """The engine's cache forgets by itself."""


class _Named(EngineCloud):
    """Over an engine of one kind. `https` is verified; the key travels as a bearer token."""

    kind: ClassVar[type[HttpEngine]]

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(self.kind(url, key=key, model=model))


class LlamaServer(_Named):
    """A llama-server at a URL."""

    kind = LlamaServerEngine


class Vllm(_Named):
    """A vLLM server at a URL."""

    kind = VllmEngine


class Sglang(_Named):
    """An SGLang server at a URL."""

    kind = SglangEngine
