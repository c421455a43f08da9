"""`RedisLimits` counts the tokens that each API key used, by an atomic script in Redis."""

import contextlib
import secrets
from collections.abc import Generator
from urllib.parse import urlsplit

from edgewise.errors import UsageError
from edgewise.keys.limit_stores import KEPT_DAYS
from edgewise.keys.limits import UNBOUNDED, LimitsDown, LimitStore

ANSWER_SECONDS = 1.0
"""Timeout in seconds of a connection to Redis, and of each reply."""

# Exceptions, besides the client's own, for a store that is away or sends nonsense.
_FAILURES = (OSError, TimeoutError, ValueError, TypeError, LookupError, RecursionError)

# A script, since gateways share the store: no other may count between its steps. A request that
# is sent again, since its reply was lost, must not count twice: it is told what it was told before.
_ADD_IN_REDIS = """
local told = redis.call('GET', KEYS[2])
if told then return tonumber(told) end
local used = redis.call('INCRBY', KEYS[1], ARGV[1])
if used < 0 then redis.call('SET', KEYS[1], 0) end
redis.call('EXPIRE', KEYS[1], ARGV[4])
local fits = used - ARGV[1] + ARGV[2] <= tonumber(ARGV[3]) and 1 or 0
if fits == 0 then redis.call('DECRBY', KEYS[1], ARGV[1]) end
redis.call('SET', KEYS[2], fits, 'EX', 60)
return fits
"""


class RedisLimits(LimitStore):
    """Counts the tokens that each API key used on each day, in a Redis that gateways share."""

    def __init__(self, url: str) -> None:
        """Set up a client, without connecting. `UsageError` if `url` is wrong or redis missing."""
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError
        except ImportError as error:
            raise UsageError(
                "Limits in a Redis need redis: pip install 'edgewise[gateway-redis]'."
            ) from error
        try:
            parts = urlsplit(url)
            self.where = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}"
            self._redis: Redis = Redis.from_url(
                url,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
                # Once: a connection that Redis closed meanwhile is not a failure. Never after a
                # timeout: a Redis that stalled would add both.
                retry=Retry(NoBackoff(), 1, (ConnectionError,)),
            )
        except (ValueError, TypeError) as error:
            # What it says may hold the password.
            raise UsageError(
                f"Key usage cannot be stored at this {url.partition('://')[0]}:// address",
                hint="name a file, redis://[:PASSWORD@]HOST[:PORT][/NUMBER], or memory",
            ) from error
        self._add = self._redis.register_script(_ADD_IN_REDIS)

    async def open(self) -> None:
        """Test the connection. Raises `LimitsDown` if it fails, `UsageError` on a refused login."""
        from redis.exceptions import AuthenticationError, AuthorizationError

        try:
            with self._answering():
                await self._redis.get(_at("", 0))
        except LimitsDown as error:
            if isinstance(error.__cause__, AuthenticationError | AuthorizationError):
                raise UsageError(
                    f"The Redis at {self.where} refuses the password", hint="check its address"
                ) from error
            raise

    async def add(self, name: str, day: int, tokens: int, most: int = UNBOUNDED) -> bool:
        key = _at(name, day)
        # With that key as its hash tag: a cluster runs a script on keys of one slot only.
        keys = [key, f"edgewise:tokens:once:{{{key}}}:{secrets.token_hex(16)}"]
        args = [tokens, tokens or 1, most, KEPT_DAYS * 86_400]
        with self._answering():
            reply = await self._add(keys=keys, args=args)
            # A bool is 1 or 0 too, and no reply of the script.
            if type(reply) is not int or reply not in (0, 1):
                raise ValueError(reply)
            return reply == 1

    async def close(self) -> None:
        await self._redis.aclose()

    @contextlib.contextmanager
    def _answering(self) -> Generator[None]:
        """Raise `LimitsDown` if Redis fails or replies nonsense inside the block."""
        from redis.exceptions import RedisError

        try:
            yield
        except (*_FAILURES, RedisError) as error:
            raise LimitsDown(f"{self.where}: {type(error).__name__}") from error


def _at(name: str, day: int) -> str:
    return f"edgewise:tokens:{day}:{name}"
