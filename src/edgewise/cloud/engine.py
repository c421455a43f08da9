"""A cloud model behind an engine's URL: the engine's asyncio code on an I/O thread."""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.io_thread import IoThread
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import PROBE_SECONDS, Abilities, Client, Engine
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.engines.sglang import SglangEngine
from edgewise.errors import CloudProtocolError
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict

_T = TypeVar("_T")


class EngineCloud(CloudModel):
    """Implements `CloudModel` over an engine, with an I/O thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.url
        self._eos_ids = frozenset([0])
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
        """Probe the engine, and compare what both make of fixed strings."""
        self.submit(self.engine.probe(), PROBE_SECONDS).result()
        proof = self.submit(self.engine.prove(tokenizer), PROBE_SECONDS).result()
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        return proof

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    async def complete(
        self, ids: list[int], n: int, sampling: Sampling, client: Client, sent: Sent
    ) -> Verdict:
        """One consult: the whole prefix goes, the engine's prefix cache does the reuse."""
        verdict = await self.engine.complete(ids, n, sampling, replace(client, sent=sent))
        return with_end(verdict, n, self._eos_ids, self.name)

    def close(self) -> None:
        self._io.close(asyncio.sleep(0), self.engine.close())


class EngineSession:
    """Implements `CloudSession`: the full prefix goes with each consult."""

    def __init__(self, cloud: EngineCloud) -> None:
        self._cloud = cloud
        self._client = Client(session=secrets.token_hex(12))

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        work = self._cloud.complete(list(ids), n, sampling, self._client, sent or Sent())
        return self._cloud.submit(work, deadline)

    def push(self, ids: Sequence[int]) -> int:
        return 0

    def close(self) -> None:
        """The engine's cache forgets by itself."""


def with_end(verdict: Verdict, n: int, eos_ids: frozenset[int], name: str) -> Verdict:
    """A verdict that ended the answer, with an end token of the edge's where the engine kept its.

    Raises `CloudProtocolError` for a verdict without any token.
    """
    ids = verdict.ids
    if verdict.stopped and len(ids) < n and not (ids and ids[-1] in eos_ids):
        empty = ((),) if verdict.top else ()
        verdict = replace(
            verdict,
            ids=(*ids, min(eos_ids)),
            logprobs=(*verdict.logprobs, None),
            top=(*verdict.top, *empty),
        )
    if not verdict.ids:
        raise CloudProtocolError(f"{name!r} answered a consult without any token.")
    return verdict


class LlamaServer(EngineCloud):
    """Implements `CloudModel`. `https` is verified; the key travels as a bearer token."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        super().__init__(LlamaServerEngine(url, key=key))


class Sglang(EngineCloud):
    """Implements `CloudModel`."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        super().__init__(SglangEngine(url, key=key))
