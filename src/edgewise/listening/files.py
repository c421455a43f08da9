"""Open files: every connection is one, and a process may have only so many."""

import sys

from edgewise.errors import UsageError

ACCEPTS = 16
"""Connections that the event loop takes at one go."""

_IN_FLIGHT = 4 * ACCEPTS
"""Taken by then before the first of them is seen: three more rounds, each before the last's end."""

_OWN = 48
"""Logs, models, keys, the event loop, what looks after engines."""

DEFAULT_CONNECTIONS = 10_000
_LEAST = 16


def connections_for(asked: int | None, *, reserve: int) -> int:
    """How many connections there may be, so that taking one never fails for want of a file.

    `reserve` open files are left for others, such as connections to engines. None asks for
    `DEFAULT_CONNECTIONS` or as many as fit. Raises `UsageError` where they do not.
    """
    limit = raised_limit()
    room = limit - reserve - _IN_FLIGHT - _OWN
    wanted = asked or _LEAST
    if wanted > room:
        raise UsageError(
            f"{wanted} connections need {wanted + limit - room} open files and this process may "
            f"have {limit}",
            hint="raise its limit (ulimit -n), or allow fewer",
            setting="connections",
        )
    return asked or min(DEFAULT_CONNECTIONS, room)


def raised_limit() -> int:
    """How many files this process may have open, once it has all that the system allows it."""
    if sys.platform == "win32":
        return 1 << 16
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # macOS names a hard limit that it does not give.
            pass
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
