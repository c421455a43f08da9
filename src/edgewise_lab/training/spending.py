"""Cloud cost of training a router: counted while it runs, or estimated before."""

import threading
import time
from datetime import timedelta
from typing import NamedTuple

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.costs.price import NOTHING, BilledTokens, Price
from edgewise_lab.wrapped_cloud import WrappedCloud, observed


class Spending(NamedTuple):
    """Cloud tokens read and written, and seconds of wall-clock time."""

    tokens: BilledTokens
    seconds: float

    def times(self, factor: float) -> "Spending":
        """Return the spending with all amounts multiplied by `factor`."""
        counts = self.tokens.input, self.tokens.cached, self.tokens.output
        read, cached, output = (round(count * factor) for count in counts)
        tokens = BilledTokens(input=read, cached=cached, output=output)
        return Spending(tokens, self.seconds * factor)

    def described(self, price: Price | None) -> str:
        """Return "0:12:30, 5,000 tokens written by the cloud and 90,000 read, 1.20 EUR"."""
        read = self.tokens.input + self.tokens.cached
        taken = timedelta(seconds=round(self.seconds))
        told = f"{taken}, {self.tokens.output:,} tokens written by the cloud and {read:,} read"
        if price is None:
            return told
        money = price.of(self.tokens)
        return f"{told}, {money:{'.2f' if money >= 1 else '.2g'}} {price.currency}".strip()


class SpendingMeter:
    """Counts cloud tokens, and the seconds since it was created."""

    def __init__(self) -> None:
        self.tokens, self._begun = NOTHING, time.monotonic()
        self._lock = threading.Lock()

    def count(self, tokens: BilledTokens) -> None:
        """Add tokens that were spent; may be called from any thread."""
        with self._lock:
            self.tokens += tokens

    @property
    def spent(self) -> Spending:
        return Spending(self.tokens, time.monotonic() - self._begun)

    def counted(self, cloud: CloudModel) -> CloudModel:
        """Return a wrapper of `cloud` whose answered requests are counted here."""
        return WrappedCloud(cloud, observed(self._completed))

    def _completed(self, prompt: int, reply: Completion) -> None:
        read = prompt if reply.prompt is None else reply.prompt
        cached = min(reply.cached or 0, read)
        self.count(BilledTokens(input=read - cached, cached=cached, output=reply.billed))
