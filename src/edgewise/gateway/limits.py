"""What a key has used: consults a second, cloud tokens a day."""

import time
from dataclasses import dataclass, field

from edgewise.gateway.keys import Key

BURST_SECONDS = 2.0
"""How much of its rate a key may save up."""

DAY_SECONDS = 86_400.0


@dataclass
class _Use:
    credit: float
    refilled: float = field(default_factory=time.monotonic)
    tokens: int = 0
    day: float = field(default_factory=time.monotonic)


class Limits:
    """Token buckets by key, in this process only."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def wait(self, key: Key) -> float:
        """0 and one consult counted, or the seconds until the key may ask again."""
        use = self._use(key)
        now = time.monotonic()
        if now - use.day > DAY_SECONDS:
            use.tokens, use.day = 0, now
        if key.tokens_per_day and use.tokens >= key.tokens_per_day:
            return DAY_SECONDS - (now - use.day)
        if not key.asks_per_second:
            return 0.0
        most = max(1.0, key.asks_per_second * BURST_SECONDS)
        use.credit = min(most, use.credit + (now - use.refilled) * key.asks_per_second)
        use.refilled = now
        if use.credit < 1:
            return (1 - use.credit) / key.asks_per_second
        use.credit -= 1
        return 0.0

    def wrote(self, key: Key, tokens: int) -> None:
        """Cloud tokens written for a key."""
        self._use(key).tokens += tokens

    def _use(self, key: Key) -> _Use:
        if key.name not in self._uses:
            self._uses[key.name] = _Use(max(1.0, key.asks_per_second * BURST_SECONDS))
        return self._uses[key.name]
