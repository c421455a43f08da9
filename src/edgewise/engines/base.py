"""The interface of an engine: a server of a large model, whatever its API.

An `Engine` is asyncio code without a thread of its own. On a device, the cloud model `EngineCloud`
runs one in an I/O thread; a gateway (the server in front of engines) runs many in its event loop.
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
"""The HTTP header with a request's id, in requests and in replies."""

# All fixed strings at once: one request shows whether a vocabulary is still the same.
_ALL = "\n".join(PROBES)

# Every vocabulary has them.
_ANY_IDS = (1, 2, 3)


class Client(msgspec.Struct, frozen=True):
    """The sender of a request to an engine, and the time until which it may be sent again.

    `session` is an id by which a load balancer finds the replica whose cache holds the prompt.
    `tenant` is the name of the gateway's API key that the request belongs to; tenants must not
    learn each other's prompts from a shared engine. At an engine that has a cache salt, only
    requests with the same `salt` share a prefix cache. `request_id` names the request in the
    engine's log. `sent` counts the ids and bytes that are sent (None: nothing counts them). If a
    busy engine names a delay that ends before `end`, in seconds of `time.monotonic()`, the request
    is sent once more (None: never).
    """

    session: str = ""
    salt: str = ""
    sent: Outgoing | None = None
    tenant: str = ""
    request_id: str = ""
    end: float | None = None

    def waits(self, seconds: float) -> bool:
        """Return whether the deadline `end` is set and more than `seconds` away."""
        return self.end is not None and time.monotonic() + seconds < self.end

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers with `request_id` and `session`, if not empty, for logs and load balancers.

        `X-Request-Id` is the former, `X-Session-Id` and `X-SMG-Routing-Key` are the latter.
        """
        named = {REQUEST_ID: self.request_id} if self.request_id else {}
        if not self.session:
            return named
        return {"X-Session-Id": self.session, "X-SMG-Routing-Key": self.session, **named}


NOBODY = Client()
"""The client of requests that belong to no session, such as probes."""


class Watched(NamedTuple):
    """Token ids and the text that an engine made of them; another text means another vocabulary."""

    ids: Sequence[int]
    text: str


class Engine(ABC):
    """A server of a large model. All methods run in one event loop.

    A method that asks the engine raises a `CloudError` if no valid answer comes. `dialect` names
    the engine's API. `probe` sets `vocabulary` to the engine's ids of each test string in
    `edgewise.edge.base.PROBES` (None if it does not tokenize), `described` to the name and
    vocabulary size of its model, and `salted` to whether it can keep the prefix caches of tenants
    (API keys of a gateway) apart. `watched` is None, or holds ids and the text that the engine must
    go on making of them (see `unchanged`). `connected` is a function without arguments, called when
    a connection to a remote engine is opened.
    """

    dialect: str

    verifies: bool = False
    """Whether the engine implements `verify`."""

    reads_once: bool = False
    """Whether a verification is billed as one prompt, not as one for each token."""

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
        """Return at most `n` tokens that the model writes after `ids`.

        `client` is the sender: its session, tenant and salt decide which KV cache is reused. If the
        model ended its answer, `Completion.stopped` is True, but the end token itself may be
        missing: `edgewise.cloud.base.with_end` appends it.
        """

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """Return a `Completion` whose `verified` has a verdict on each of the last `count` ids.

        In a verdict (`Verified`), `logprob` is the given id's and `best` the likeliest id's, in
        nats; `id` is the likeliest id. Only a model in this process samples `id` instead, if
        `sampling` has a temperature. Raises `CloudRejected` if the engine cannot verify.
        """
        raise CloudRejected(f"The engine at {self.url!r} cannot verify tokens.")

    async def consult(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client, verify: int = 0
    ) -> Completion:
        """Return verdicts on the last `verify` ids; if `verify` is 0, up to `n` tokens after `ids`.

        With `verify`, `n` is ignored. `client` is the sender: its session, tenant and salt decide
        which KV cache is reused, its deadline decides whether a busy engine is asked again.
        """
        if verify:
            return await self.verify(ids, verify, sampling, client)
        return await self.complete(ids, n, sampling, client)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        """Let the engine prefill `ids`: later requests of `client` find them in its KV cache."""
        await self.complete(ids, 1, Sampling(), client)

    @abstractmethod
    async def tokenize(self, text: str) -> list[int] | None:
        """Return the ids of `text`, without a BOS token; None if the engine does not tokenize."""

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        """Return the text of `ids`, control tokens written out; None if the engine cannot."""
        return None

    async def end_text(self) -> str | None:
        """Return the text of the token that ends the model's answers; None if unknown."""
        return None

    @abstractmethod
    async def describe(self) -> Described:
        """Return the name and vocabulary size of the engine's model, each None if not reported.

        Raises a `CloudError` also if the engine does not serve the configured model.
        """

    @abstractmethod
    async def ready(self) -> None:
        """Raise a `CloudError` unless the engine can answer."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    async def has_salt(self, ids: Sequence[int]) -> bool:
        """Return whether the engine has a cache salt; to find out, it may be sent the prompt `ids`.

        Requests with different salts share no cached prefix.
        """
        return False

    async def probe(self) -> None:
        """Set `vocabulary`, `described` and `salted` by asking the engine, and `watched` to None.

        Also completes a prompt. Raises `CloudRejected` if the engine does not take and return ids.
        """
        _, self.described = await parallel(self.ready(), self.describe())
        self.watched = None
        *each, self._joint_ids = await parallel(*(self.tokenize(text) for text in (*PROBES, _ALL)))
        self.vocabulary = None if None in each else tuple(each)
        ids = self.vocabulary[0] if self.vocabulary else _ANY_IDS
        _, self.salted = await parallel(self._check_first_completion(ids), self.has_salt(ids))

    async def unchanged(self) -> bool:
        """Return whether the engine still has the model and the vocabulary that `probe` found.

        Compared are its reply to `describe`, its ids of `PROBES` and, if `watched` is set, its text
        of `watched.ids`. Raises a `CloudError` if the engine is not ready.
        """
        checks: list[Awaitable[object]] = [self.ready(), self.describe(), self.tokenize(_ALL)]
        expected: list[object] = [None, self.described, self._joint_ids]
        if self.watched:
            checks.append(self.detokenize(self.watched.ids))
            expected.append(self.watched.text)
        return await parallel(*checks) == expected

    def compare_strings(self, tokenizer: Tokenizer) -> str:
        """Check that the test strings of `vocabulary` have the same ids in `tokenizer`.

        Returns what was found, in words: "5 strings have the same ids at the engine". Raises
        `VocabularyMismatch` if a string has other ids, or if `vocabulary` is None.
        """
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
        """Return the error for vocabularies that differ; `what` says how, as in "has no id 7"."""
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
    """Await all `work` at once; return the results in the order of `work`.

    If some of it failed, raise the first error in that order, once all of it has ended.
    """
    # By itself `gather` raises the first at once, and leaves the others running.
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def nobody() -> None:
    """Do nothing; the default of `Engine.connected`."""


def drawn(sampling: Sampling, position: int) -> Mapping[str, Any]:
    """Return a request's sampling fields: temperature, top_k, top_p, min_p and seed.

    If `sampling` is greedy, the only field is a temperature of 0. The seed depends on
    `sampling.seed` and on `position`, the number of ids (or of characters) before the next token.
    """
    if sampling.greedy:
        return GREEDY
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed_at(position),
    }
