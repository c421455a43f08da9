"""A scripted provider that bills prompts, with a cache of prefixes as providers document theirs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from msgspec.structs import replace

from edgewise.cloud.base import ConsultRequest
from edgewise.completion import Completion
from edgewise.edge.vocabulary import common_prefix
from edgewise.prompts import Prompt
from edgewise.testing.scripted_cloud import Failing, ScriptedCloud, ScriptedCloudSession
from edgewise.testing.scripted_edge import Script

_REMEMBERED = 4


class PrefixCache(NamedTuple):
    """Whole blocks of what was sent before are cached, where that is `least` tokens or more."""

    least: int
    block: int

    def holds(self, prefix: int) -> int:
        """How much it finds of so many tokens that were sent before."""
        return prefix // self.block * self.block if prefix >= self.least else 0


class Billed(NamedTuple):
    """A consult's bill, and the tokens that are `lost`: cached, had the cache kept them."""

    input: int
    cached: int
    output: int
    lost: int


class BilledCloud(ScriptedCloud):
    """Implements `CloudModel`. `bills` is the truth about every ask that it answered or was late
    for, whether or not its meter told."""

    def __init__(
        self,
        script: Script,
        cache: PrefixCache | None,
        *,
        loses: Callable[[int], bool] = lambda ask: False,
        meter: bool = True,
        fault: Failing = lambda ask: None,
        verifies: bool = False,
    ) -> None:
        """Before an ask for which `loses` says so, given its number, the cache is emptied.

        Without a `cache` nothing ever is cached; without a `meter` a completion does not tell. A
        fault is billed for unless the ask was declined.
        """
        super().__init__(script, fault=fault, verifies=verifies)
        self.cache, self.loses, self.meter = cache, loses, meter
        self.bills: list[Billed] = []
        self._seen: list[list[int]] = []
        self._kept: list[list[int]] = []

    def open(self, prompt: Prompt) -> "_BilledSession":
        self.opened += 1
        return _BilledSession(self)

    def charge(self, ids: Sequence[int], number: int) -> tuple[int, int]:
        """Prompt tokens that were cached, and lost; from now on all of them are."""
        if self.loses(number):
            self._kept.clear()
        found, could = self._found(ids, self._kept), self._found(ids, self._seen)
        for seen in (self._kept, self._seen):
            seen.append(list(ids))
            del seen[:-_REMEMBERED]
        return found, could - found

    def _found(self, ids: Sequence[int], seen: Sequence[list[int]]) -> int:
        prefix = max((_shared(one, ids) for one in seen), default=0)
        return self.cache.holds(prefix) if self.cache else 0


class _BilledSession(ScriptedCloudSession):
    def __init__(self, cloud: BilledCloud) -> None:
        super().__init__(cloud)
        self._billing = cloud

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        ids, n = request.ids, request.n
        cloud, number = self._billing, len(self._billing.asks)
        told = super().ask(request)
        error = told.exception()
        if getattr(error, "declined", False):
            return told
        cached, lost = cloud.charge(ids, number)
        output = n if error else len(told.result().ids)
        cloud.bills.append(Billed(len(ids) - cached, cached, output, lost))
        if error or not cloud.meter:
            return told
        metered: Future[Completion] = Future()
        counts = {"cached": cached, "computed": len(ids) - cached, "prompt": len(ids)}
        metered.set_result(replace(told.result(), **counts))
        return metered


def _shared(held: list[int], ids: Sequence[int]) -> int:
    # Comparing lists is much faster than going through them.
    return len(held) if held == list(ids[: len(held)]) else common_prefix(held, ids)
