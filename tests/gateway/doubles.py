"""An engine and a store of limits in this process, for what no real one can be made to do."""

import asyncio
from collections.abc import Callable, Sequence

from edgewise.completion import Completion, Verified
from edgewise.engines.base import NOBODY, Client, Described, Engine
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import LimitsDown
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer

Act = Callable[[Sequence[int], int], Completion]
"""From a consult's ids and how many tokens it wants to what it is answered; it may raise."""


def letters(ids: Sequence[int], n: int) -> Completion:
    """As many "a" as are asked for."""
    return Completion(ids=(97,) * n, logprobs=(-0.1,) * n, cached=len(ids), computed=0)


def raising(error: BaseException) -> Act:
    """Fails every consult with it."""

    def act(ids: Sequence[int], n: int) -> Completion:
        raise error

    return act


def own_id(prefix: Sequence[int]) -> int:
    """What a `VerifyingEngine` would write: a letter that depends on every id before."""
    return 97 + hash(tuple(prefix)) % 26


def read_along(ids: Sequence[int], n: int) -> Completion:
    """What a `VerifyingEngine` says of the last `n` of `ids`."""
    at = len(ids) - n
    verified = [_verified(ids[:end], ids[end]) for end in range(at, len(ids))]
    return Completion(ids=(), logprobs=(), verified=tuple(verified), cached=at, computed=n)


def _verified(prefix: Sequence[int], token: int) -> Verified:
    own = own_id(prefix)
    return Verified(-0.25 if token == own else -4.5, own, -0.25)


class FailingLimits(SqliteLimits):
    """In memory; fails as long as it is `down`."""

    down = True

    def __init__(self) -> None:
        super().__init__(None)

    async def add(self, name: str, day: int, tokens: int, most: int = 0) -> bool:
        if self.down:
            raise LimitsDown("gone")
        return await super().add(name, day, tokens, most)


class PlainEngine(Engine):
    """Answers as `act` says, once `go` is set, if there is one.

    `down` is raised by every call, `probes` counts those that passed.
    """

    dialect = "plain"

    def __init__(self, name: str = "plain", act: Act = letters, *, size: int | None = None) -> None:
        super().__init__(name)
        self.act = act
        self.down: Exception | None = None
        self.go: asyncio.Event | None = None
        self.model, self.size = "letters", size
        self.tokenizer = ByteTokenizer()
        self.mark = 0
        self.looks = self.probes = self.asked = self.prefills = 0
        self.clients: list[Client] = []
        self.closed = False

    async def ready(self) -> None:
        self.looks += 1
        if self.down is not None:
            raise self.down

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        if client is not NOBODY:
            self.asked += 1
            self.clients.append(client)
        if self.go:
            await self.go.wait()
        if client is NOBODY:
            self.probes += 1
            return letters(ids, n)
        if self.down is not None:
            raise self.down
        return self.act(ids, n)

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        self.prefills += 1
        if self.go:
            await self.go.wait()
        self.act(ids, 1)

    async def tokenize(self, text: str) -> list[int] | None:
        """Ids of another vocabulary where `mark` is set."""
        return [token ^ self.mark for token in self.tokenizer.encode(text)]

    async def describe(self) -> Described:
        return Described(self.model, self.size)

    async def close(self) -> None:
        self.closed = True


class VerifyingEngine(PlainEngine):
    """Verifies too, as `reads` says."""

    verifies = reads_once = True

    def __init__(self, name: str = "verifying") -> None:
        super().__init__(name, lambda ids, n: Completion(ids=(own_id(ids),), logprobs=(-0.25,)))
        self.reads: Act = read_along

    async def verify(
        self, ids: Sequence[int], count: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        self.asked += 1
        self.clients.append(client)
        if self.go:
            await self.go.wait()
        if self.down is not None:
            raise self.down
        return self.reads(ids, count)
