"""The contract of an engine: a server of a large model, whatever its API.

An `Engine` is asyncio code without a thread of its own. On the device, `EngineCloud` runs one in an
I/O thread and implements `CloudModel` with it; the gateway runs many in its event loop.
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
    """The sender of a consult (one request to the cloud model), and how long it waits.

    `session` names the session: a load balancer can route by it to the replica whose cache holds
    the prompt. `tenant` is the name of the gateway's API key for which the engine is asked; tenants
    must not learn each other's prompts from a shared engine. At an engine that has a cache salt,
    only requests with the same `salt` share a prefix cache. `sent` counts the ids and bytes that
    travel. `request_id` names the consult in the engine's log. `end` is the deadline, in seconds of
    the monotonic clock: until then a busy engine may be asked again; with None it never is.
    """

    session: str = ""
    salt: str = ""
    sent: Outgoing | None = None
    tenant: str = ""
    request_id: str = ""
    end: float | None = None

    def waits(self, seconds: float) -> bool:
        """Return whether there is a deadline and it is more than `seconds` away."""
        return self.end is not None and time.monotonic() + seconds < self.end

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers with request and session id, for engines' logs and for load balancers.

        `X-Request-Id` is the request's id, `X-Session-Id` and `X-SMG-Routing-Key` the session's. An
        empty id has no header.
        """
        named = {REQUEST_ID: self.request_id} if self.request_id else {}
        if not self.session:
            return named
        return {"X-Session-Id": self.session, "X-SMG-Routing-Key": self.session, **named}


NOBODY = Client()
"""The client of requests that belong to no session, such as probes."""


class Watched(NamedTuple):
    """Token ids and their text at an engine, which changes only if the vocabulary does."""

    ids: Sequence[int]
    text: str


class Engine(ABC):
    """A server of a large model. All methods run in one event loop.

    After `probe`, `vocabulary` holds the engine's ids of the test strings
    `edgewise.edge.base.PROBES` (None if it does not tokenize), `described` the name and vocabulary
    size of its model, and `salted` whether it can keep the prefix caches of tenants (API keys of a
    gateway) apart. `watched` holds ids and the text that the engine must go on decoding them to
    (see `unchanged`); it is None until a comparison of vocabularies sets it. Assign a function to
    `connected` to have it called when a connection to a remote engine is opened.
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
        """Return at most `n` tokens that the model writes after `ids`. Raises a `CloudError`.

        `client` is the sender: its session, tenant and salt decide which KV cache is reused. That
        the model ended may be reported only as `Completion.stopped`, without the end token, which
        `edgewise.cloud.base.with_end` then appends.
        """

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        """Return a completion with a `Verified` for each of the last `count` ids, and no tokens.

        `Verified.logprob` is that of the given id, in nats; `Verified.id` is the one that the model
        finds likeliest there. Only a model in this process draws it instead, if `sampling` has a
        temperature. Raises a `CloudError`.
        """
        raise CloudRejected(f"The engine at {self.url!r} cannot verify tokens.")

    async def consult(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client, verify: int = 0
    ) -> Completion:
        """Verify the last `verify` ids, whatever `n` is; if `verify` is 0, write up to `n` tokens.

        `client` is the sender: its session, tenant and salt decide which KV cache is reused, its
        deadline whether a busy engine is asked again. Raises a `CloudError`.
        """
        if verify:
            return await self.verify(ids, verify, sampling, client)
        return await self.complete(ids, n, sampling, client)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        """Let the engine prefill `ids` for later requests of `client`. Raises a `CloudError`."""
        await self.complete(ids, 1, Sampling(), client)

    @abstractmethod
    async def tokenize(self, text: str) -> list[int] | None:
        """Return the ids of `text`, without a BOS token; None if the engine does not tokenize."""

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        """Return the text of `ids`, control tokens written out; None if the engine cannot.

        Raises a `CloudError`.
        """
        return None

    async def end_text(self) -> str | None:
        """Return the text of the token that ends the model's answers; None if unknown."""
        return None

    @abstractmethod
    async def describe(self) -> Described:
        """Return the name and the vocabulary size of the engine's model, each None if not reported.

        Raises a `CloudError` if the engine cannot be reached or does not serve the configured
        model.
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
        """Ask the engine for `vocabulary`, `described` and `salted`, and set them; unset `watched`.

        Raises a `CloudError`; `CloudRejected` if the engine does not take and return token ids.
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
        """Check that the strings in `PROBES` have the same ids at the engine and in `tokenizer`.

        Returns a text for messages: "5 strings have the same ids at the engine". Raises
        `VocabularyMismatch` if any has other ids, or if the engine does not tokenize.
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
        """Return the error "The cloud model at URL `what`, so their vocabularies differ"."""
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
    """Run all `work` to its end; return the results in order, or raise the first of the errors."""
    # By itself `gather` raises the first at once, and leaves the others running.
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def nobody() -> None:
    """Do nothing: the default callback."""


def drawn(sampling: Sampling, position: int) -> Mapping[str, Any]:
    """Return a request's sampling fields: temperature, top_k, top_p, min_p and seed.

    A greedy request has only a temperature, 0. The seed depends on `sampling.seed` and `position`,
    the number of ids (or of characters) before the next token.
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
