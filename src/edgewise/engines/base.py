"""The contract of an engine that serves a large model, whatever its dialect.

An `Engine` is asyncio code without a thread of its own. On the device `EngineCloud` runs one in an
I/O thread and implements `CloudModel`; the gateway runs many in its event loop.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from edgewise.completion import Completion, Outgoing
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.errors import CloudProtocolError, CloudRejected, VocabularyMismatch
from edgewise.sampling import Sampling
from edgewise.servers.base import GREEDY, Described
from edgewise.servers.replies import TOP

__all__ = ["NOBODY", "TOP", "Client", "Described", "Engine", "Watched"]

PROBE_SECONDS = 30.0

REQUEST_ID = "X-Request-Id"
"""The header that names a request, there and back."""

# All fixed strings at once: one request shows whether a vocabulary is still the same.
_ALL = "\n".join(PROBES)

# Every vocabulary has them.
_ANY_IDS = (1, 2, 3)


class Client(msgspec.Struct, frozen=True):
    """Whose consult it is: `session` keeps a replica's cache warm, `salt` keeps tenants apart.

    `tenant` is a gateway's key: keys that share an engine must not learn what others ask.
    `sent` counts what travels. `request_id` names the consult in the engine's log. `end` is until
    when it is waited for, by the monotonic clock; None: an engine that is busy is not asked again.
    """

    session: str = ""
    salt: str = ""
    sent: Outgoing | None = None
    tenant: str = ""
    request_id: str = ""
    end: float | None = None

    def waits(self, seconds: float) -> bool:
        """Whether there is time left after so many seconds."""
        return self.end is not None and time.monotonic() + seconds < self.end

    @property
    def headers(self) -> dict[str, str]:
        """Request and session id, as fleet routers (Ray Serve, vLLM, llm-d, SGLang) read them."""
        named = {REQUEST_ID: self.request_id} if self.request_id else {}
        if not self.session:
            return named
        return {"X-Session-Id": self.session, "X-SMG-Routing-Key": self.session, **named}


NOBODY = Client()


class Watched(NamedTuple):
    """Ids and the text that an engine made of them, to see whether it still does."""

    ids: Sequence[int]
    text: str


class Engine(ABC):
    """An engine. Methods run in one event loop; `close` closes its connections.

    `vocabulary` holds the ids of the fixed strings (`edgewise.edge.base.PROBES`) once the engine
    was probed, None where it does not tokenize; `described` is what it said of its model then, and
    `salted` whether it can keep the prefix caches of several tenants apart.
    `watched` are ids of which it must go on making the same text, once they were compared.
    `connected` is called when a connection was opened, for an engine that is somewhere else.
    """

    dialect: str

    verifies: bool = False
    """Whether it has `verify`."""

    reads_once: bool = False
    """Whether it is billed once for a verification, and not for each token as a prompt or more."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.salted = False
        self.vocabulary: tuple[list[int], ...] | None = None
        self.described = Described()
        self.watched: Watched | None = None
        self.connected: Callable[[], None] = nobody
        self._joint_ids: list[int] | None = None

    @abstractmethod
    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """`n` tokens after `ids`. An engine may keep an end token to itself: see `with_end`."""

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """No tokens, but `verified`: what the model says of each of the last `count` of `ids`.

        Others come before them. `Verified.id` is the likeliest, with a temperature too: none of
        these engines draws at every position. Raises a `CloudError`.
        """
        raise CloudRejected(f"The engine at {self.url!r} cannot verify tokens.")

    async def consult(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client, verify: int = 0
    ) -> Completion:
        """`verify` of the last so many ids, else `complete`."""
        if verify:
            return await self.verify(ids, verify, sampling, client)
        return await self.complete(ids, n, sampling, client)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        """Fill the prefix cache; the one token that most engines must write for it is dropped."""
        await self.complete(ids, 1, Sampling(), client)

    @abstractmethod
    async def tokenize(self, text: str) -> list[int] | None:
        """Ids of `text` without special tokens; None where the engine does not tokenize."""

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        """The text of `ids`, control tokens shown, or None; raises a `CloudError`."""
        return None

    async def end_text(self) -> str | None:
        """Text of the token that ends its answers; None if unknown."""
        return None

    @abstractmethod
    async def describe(self) -> Described:
        """Describes its model; raises a `CloudError` if the engine is not of this dialect."""

    @abstractmethod
    async def ready(self) -> None:
        """Raises a `CloudError` unless the engine can answer."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """Whether prefix caches can be kept apart."""
        return False

    async def probe(self) -> None:
        """Find out what the engine can do; raises `CloudRejected` for one that takes no ids."""
        _, self.described = await parallel(self.ready(), self.describe())
        self.watched = None
        *each, self._joint_ids = await parallel(*(self.tokenize(text) for text in (*PROBES, _ALL)))
        self.vocabulary = None if None in each else tuple(each)
        ids = self.vocabulary[0] if self.vocabulary else _ANY_IDS
        _, self.salted = await parallel(self._check_first_completion(ids), self.has_salt(ids))

    async def unchanged(self) -> bool:
        """Whether what answers is what was probed; raises a `CloudError` where it is not ready."""
        checks: list[Awaitable[object]] = [self.ready(), self.describe(), self.tokenize(_ALL)]
        expected: list[object] = [None, self.described, self._joint_ids]
        if self.watched:
            checks.append(self.detokenize(self.watched.ids))
            expected.append(self.watched.text)
        return await parallel(*checks) == expected

    def compare_strings(self, tokenizer: Tokenizer) -> str:
        """Compare the fixed strings, after a probe; says how. Raises `VocabularyMismatch`."""
        if self.vocabulary is None:
            raise VocabularyMismatch(
                f"The engine at {self.url!r} does not report its tokenizer, so its vocabulary "
                "cannot be compared with the edge model's",
                hint="serve its tokenizer too",
            )
        for text, ids in zip(PROBES, self.vocabulary, strict=True):
            if ids != tokenizer.encode(text):
                raise self.mismatch(f"splits {text!r} into other ids than the edge model")
        return f"{len(PROBES)} strings have the same ids at the engine"

    def mismatch(self, what: str) -> VocabularyMismatch:
        return VocabularyMismatch(
            f"The cloud model at {self.url!r} {what}, so their vocabularies differ",
            hint="choose two models of one family, or name its own tokenizer",
            setting="cloud_tokenizer",
        )

    async def _check_first_completion(self, ids: Sequence[int]) -> None:
        try:
            completion = await self.complete(ids, 1, Sampling())
        except (CloudRejected, CloudProtocolError) as error:
            raise CloudRejected(
                f"The engine at {self.url!r} does not take and return token ids, so it cannot "
                f"serve consults ({error})",
                request_id=error.request_id,
            ) from error
        completion.validate(asked=1, prompt=len(ids), size=self.described.size)


async def parallel(*work: Awaitable[Any]) -> list[Any]:
    """All results, once all have ended; raises what the first listed of those that failed did."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def nobody() -> None:
    """Stands for a callback that is not set."""


def drawn(sampling: Sampling, position: int) -> Mapping[str, Any]:
    """Sampling fields, with the names that most servers share; greedy without a draw."""
    if sampling.greedy:
        return GREEDY
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed_at(position),
    }
