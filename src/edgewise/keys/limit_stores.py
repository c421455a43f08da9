"""Where it is counted what keys use, by a word of the operator's."""

from pathlib import Path

from edgewise.errors import UsageError
from edgewise.keys.limits import KeyLimits
from edgewise.keys.limits_redis import SCHEMES, RedisLimits
from edgewise.keys.limits_sqlite import SqliteLimits

MEMORY = "memory"


def limits_at(where: str | None, keys: Path | None) -> KeyLimits:
    """Limits kept at `where`: a file, the address of a Redis, or memory (this process only).

    None is a file beside that of the keys; without keys nothing is limited. Raises `UsageError`.
    """
    if keys is None:
        if where is not None:
            raise UsageError("Limits are those of keys, and there are none", hint="name their file")
        return KeyLimits(SqliteLimits(None))
    if where is None:
        return KeyLimits(SqliteLimits(keys.with_name(keys.name + ".limits")))
    if where == MEMORY:
        return KeyLimits(SqliteLimits(None))
    scheme, separator, _ = where.partition("://")
    if not separator:
        return KeyLimits(SqliteLimits(Path(where)))
    if scheme not in SCHEMES:
        raise UsageError(
            f"Limits cannot be kept at {scheme}://",
            hint="name a file, a redis:// address, or memory",
        )
    return KeyLimits(RedisLimits(where))
