"""When a server that is busy wants to be asked again: HTTP's `Retry-After`."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

HEADER = "Retry-After"

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


def seconds_told(header: str | None) -> float | None:
    """Seconds from now, 0 or more; None where there is no such header, or it says nothing."""
    said = (header or "").strip()
    if _SECONDS.fullmatch(said):
        return float(said)
    try:
        when = parsedate_to_datetime(said)
    except (TypeError, ValueError, OverflowError):
        return None
    zoned = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    seconds = (zoned - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
