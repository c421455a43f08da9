"""What the answers of a pair or a server cost: price, limits, and sums by conversation."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from edgewise.cloud.base import CloudModel
from edgewise.costs.daily import DailyTotal
from edgewise.costs.meter import AnswerCosts, CloudTokens, CostReport, Limits
from edgewise.costs.price import Price
from edgewise.edge.base import Tokenizer
from edgewise.events import AnswerCost

KEPT_CONVERSATIONS = 100
"""The last ones, whose sums are shown."""


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """What answers cost together, those of one conversation or all."""

    conversation: str | None
    answers: int
    cost: AnswerCost


class Billing:
    """Shared by answers; thread-safe."""

    def __init__(
        self, price: Price, *, limits: Limits | None = None, daily: DailyTotal | None = None
    ) -> None:
        """By default an answer costs no more than the cloud alone.

        Raises `UsageError` for a limit of a day whose `daily` file cannot be used.
        """
        self.price, self.limits, self.daily = price, limits or Limits(), daily
        if self.limits.day is not None and daily is not None:
            daily.require_usable()
        self._lock = threading.Lock()
        self._all = (0, CostReport())
        self._conversations: OrderedDict[str, tuple[int, CostReport]] = OrderedDict()

    def answer(
        self,
        prompt: Sequence[int],
        edge: Tokenizer,
        cloud: CloudModel | None,
        *,
        cloud_alone: bool,
        whole: bool,
    ) -> AnswerCosts:
        """A new answer's meter; with `cloud_alone` it is not held to what that costs.

        `whole`: nothing but the answer's length cuts a completion short.
        """
        return AnswerCosts(
            self.price,
            self.limits._replace(alone=self.limits.alone and not cloud_alone),
            CloudTokens(prompt, edge, cloud),
            cloud.requests if cloud is not None else lambda n: (1, n),
            whole=whole,
            daily=self.daily,
            report=self._add,
        )

    def savings(self) -> Savings:
        """Of all answers so far."""
        with self._lock:
            return self._shown(None, *self._all)

    def conversations(self) -> list[Savings]:
        """Of each of the last conversations, the latest first."""
        with self._lock:
            kept = list(self._conversations.items())
        return [self._shown(name, *sums) for name, sums in reversed(kept)]

    def _add(self, conversation: str, report: CostReport) -> None:
        with self._lock:
            self._all = _plus(self._all, report)
            sums = self._conversations.pop(conversation, (0, CostReport()))
            self._conversations[conversation] = _plus(sums, report)
            while len(self._conversations) > KEPT_CONVERSATIONS:
                self._conversations.popitem(last=False)

    def _shown(self, conversation: str | None, answers: int, report: CostReport) -> Savings:
        cost = report.shown(self.price)
        return Savings(conversation=conversation, answers=answers, cost=cost)


def _plus(sums: tuple[int, CostReport], report: CostReport) -> tuple[int, CostReport]:
    return sums[0] + 1, sums[1].plus(report)
