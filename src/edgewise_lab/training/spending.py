"""Cloud cost of a training: counted as it is spent, estimated before."""

import threading
import time
from datetime import timedelta
from typing import NamedTuple

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.costs.price import NOTHING, BilledTokens, Price
from edgewise_lab.wrapped_cloud import WrappedCloud, observed


class Spending(NamedTuple):
    """Cloud tokens, and seconds."""

    tokens: BilledTokens
    seconds: float

    def times(self, factor: float) -> "Spending":
        """Multiplies all amounts."""
        one = self.tokens
        tokens = BilledTokens(
            input=round(one.input * factor),
            cached=round(one.cached * factor),
            output=round(one.output * factor),
        )
        return Spending(tokens, self.seconds * factor)

    def described(self, price: Price | None) -> str:
        """Describes it in words, with money if a price is known."""
        read = self.tokens.input + self.tokens.cached
        taken = timedelta(seconds=round(self.seconds))
        told = f"{taken}, {self.tokens.output:,} tokens written by the cloud and {read:,} read"
        if price is None:
            return told
        money = price.of(self.tokens)
        return f"{told}, {money:{'.2f' if money >= 1 else '.2g'}} {price.currency}".strip()


class SpendingMeter:
    """Counts from when it is made. What a cloud does not meter counts as read anew."""

    def __init__(self) -> None:
        self.tokens, self._begun = NOTHING, time.monotonic()
        self._lock = threading.Lock()

    def count(self, tokens: BilledTokens) -> None:
        """Add what was spent; from any thread."""
        with self._lock:
            self.tokens += tokens

    @property
    def spent(self) -> Spending:
        """Spending so far."""
        return Spending(self.tokens, time.monotonic() - self._begun)

    def counted(self, cloud: CloudModel) -> CloudModel:
        """`cloud`, whose consults are counted once they are answered."""
        return WrappedCloud(cloud, observed(self._completed))

    def _completed(self, prompt: int, reply: Completion) -> None:
        read = prompt if reply.prompt is None else reply.prompt
        cached = min(reply.cached or 0, read)
        self.count(BilledTokens(input=read - cached, cached=cached, output=reply.billed))
