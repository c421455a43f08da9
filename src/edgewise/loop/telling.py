"""What is told of an answer besides its tokens: times, and consults that are over."""

import time

from msgspec.structs import replace

from edgewise.cloud.record.files import SentMessage
from edgewise.completion import Completion
from edgewise.errors import CloudError
from edgewise.events import Consult, Timing
from edgewise.loop.consults import Flight


class Clock:
    """Seconds from the start, between tokens, and of those spent waiting."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._first: float | None = None
        self._waited = 0.0

    def token(self, waited: float) -> tuple[float, float]:
        """Seconds since the token before, and of those waited; `waited` since the start."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        wait, self._waited = waited - self._waited, waited
        if self._first is None:
            self._first = now - self._started
        return seconds, wait

    def timing(self) -> Timing:
        """Of the whole answer."""
        total = time.monotonic() - self._started
        return Timing(ttft=self._first or 0.0, total=total, wait=self._waited)


def consult_over(
    index: int, flight: Flight, outcome: Completion | CloudError, about: SentMessage
) -> Consult:
    """What is told of the consult for token `index`, over now with `outcome`."""
    told = Consult(
        index=index,
        outcome=outcome.reason if isinstance(outcome, CloudError) else "answered",
        asked=flight.ask,
        answered=0,
        sent_ids=flight.sent.ids,
        sent_bytes=flight.sent.bytes,
        seconds=time.monotonic() - flight.begun,
        request_id=flight.sent.request_id,
        host=about.host if about.bytes else "",
        new_tokens=about.new_tokens,
        new_characters=about.new_characters,
    )
    if isinstance(outcome, CloudError):
        return replace(told, message=str(outcome))
    return replace(
        told,
        answered=len(outcome.ids),
        cached=outcome.cached,
        computed=outcome.computed,
        engine_seconds=outcome.engine_seconds,
    )
