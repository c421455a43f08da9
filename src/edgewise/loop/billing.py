"""What the answers of a decoder or a server cost: price, limits, and sums by conversation."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import Tokenizer
from edgewise.events import AnswerCost
from edgewise.loop.cost import CloudTokens, CostMeter, Limits, Reckoning
from edgewise.loop.price import NOTHING, Price
from edgewise.loop.spent import SpentFile, today

KEPT_CONVERSATIONS = 100
"""Those whose sums are shown: the last ones."""


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """What answers cost together, those of one conversation or all."""

    conversation: str | None
    answers: int
    cost: AnswerCost


class Billing:
    """Shared by answers; any thread may call."""

    def __init__(
        self, price: Price, *, limits: Limits | None = None, spent: SpentFile | None = None
    ) -> None:
        """Limits are by default that of the cloud alone; a day's sum is kept in `spent`.

        Raises `UsageError` where a day's limit has no file to hold it.
        """
        self.price, self.limits = price, limits or Limits()
        self.spent = spent
        if self.limits.day is not None and spent is not None:
            spent.require_usable()
        self._lock = threading.Lock()
        self._all = _Sum()
        self._conversations: OrderedDict[str, _Sum] = OrderedDict()

    def answer(
        self,
        prompt: Sequence[int],
        edge: Tokenizer,
        cloud: CloudModel | None,
        *,
        cloud_alone: bool,
        whole: bool,
    ) -> "AnswerBill":
        """A new answer's part; with `cloud_alone` it is not held to what that costs.

        `whole`: nothing but the answer's length cuts a completion short.
        """
        limits = self.limits._replace(alone=self.limits.alone and not cloud_alone)
        return AnswerBill(self, limits, CloudTokens(prompt, edge, cloud), cloud, whole=whole)

    def add(self, conversation: str, found: Reckoning) -> None:
        """An answer is over."""
        with self._lock:
            self._all.add(found)
            one = self._conversations.pop(conversation, None) or _Sum()
            one.add(found)
            self._conversations[conversation] = one
            while len(self._conversations) > KEPT_CONVERSATIONS:
                self._conversations.popitem(last=False)

    def savings(self) -> Savings:
        """Of all answers so far."""
        with self._lock:
            return self._all.shown(None, self.price)

    def conversations(self) -> list[Savings]:
        """Of each of the last conversations, the latest first."""
        with self._lock:
            found = [one.shown(name, self.price) for name, one in self._conversations.items()]
        return found[::-1]


class AnswerBill:
    """One answer's meter, and its part of the day's sum."""

    def __init__(
        self,
        billing: Billing,
        limits: Limits,
        tokens: CloudTokens,
        cloud: CloudModel | None,
        *,
        whole: bool,
    ) -> None:
        self._billing = billing
        # An answer counts for the day on which it began.
        self._day, self._booked = today(), Decimal(0)
        requests = cloud.requests if cloud is not None else _one_request
        self.meter = CostMeter(billing.price, limits, tokens, requests, self, whole=whole)

    def book(self, cost: Decimal) -> bool:
        """All that the answer may cost by now, of what the day has left."""
        billing = self._billing
        if billing.spent is None:
            return False
        added = billing.spent.add(
            self._day, billing.price.currency, cost - self._booked, billing.limits.day
        )
        if added:
            self._booked = cost
        return added

    def cost(self, ids: Sequence[int]) -> AnswerCost:
        """Of the answer in `ids` so far, prompt included."""
        return self.meter.reckoning(ids).cost(self._billing.price)

    def close(self, ids: Sequence[int], conversation: str) -> None:
        """The answer is over: `ids` is all of it."""
        billing = self._billing
        found = self.meter.reckoning(ids)
        billing.add(conversation, found)
        left = billing.price.of(found.bill) - self._booked
        if left and billing.spent is not None:
            billing.spent.add(self._day, billing.price.currency, left)


class _Sum:
    def __init__(self) -> None:
        self._answers, self._found = 0, Reckoning(NOTHING, Decimal(0))

    def add(self, found: Reckoning) -> None:
        self._answers, self._found = self._answers + 1, self._found + found

    def shown(self, conversation: str | None, price: Price) -> Savings:
        return Savings(
            conversation=conversation, answers=self._answers, cost=self._found.cost(price)
        )


def _one_request(n: int) -> tuple[int, int]:
    return 1, n
