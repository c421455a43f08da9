"""What keys have used, in a Redis: gateways on several machines share it, and its clock."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from edgewise.errors import UsageError
from edgewise.keys.key_file import Key
from edgewise.keys.limits import (
    ASKS_BURST_SECONDS,
    DAY_SECONDS,
    IDS_BURST_SECONDS,
    MOST_DEBT,
    ROUNDING,
    Cost,
    Granted,
    LimitsDown,
    LimitStore,
)

SCHEMES = ("redis", "rediss", "unix")

ANSWER_SECONDS = 1.0
"""How long Redis may take to answer."""

CONNECTIONS = 32
CROWD_SECONDS = 5.0
"""How long a consult may wait for one of the connections."""

# A hash a key: when its buckets are full, and the tokens of its last days. The same arithmetic as
# in `limits_sqlite`, whose words explain it; `tests/gateway/test_limits.py` holds both to it.
_SCRIPT = """
local name, given, take = KEYS[1], ARGV[1], ARGV[2] == 'take'
local asks_rate, ids_rate, per_day = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local asks, ids, tokens = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local asks_burst, ids_burst, debt = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local seconds, rounding, settled = tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14]
local now = tonumber(given)
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end
local day = math.floor(now / seconds)

local function bucket(field, rate, most, owed)
  local until_full = tonumber(redis.call('HGET', name, field) or '0') - now
  until_full = math.min(math.max(0, until_full), (most + owed) / rate)
  return {field = field, rate = rate, most = most, owed = owed, until_full = until_full}
end
local function wait(b)
  local missing = 1 - (b.most - b.until_full * b.rate)
  if missing > rounding then return missing / b.rate end
  return 0
end
local function spend(b, amount)
  b.until_full = math.min(b.until_full + amount / b.rate, (b.most + b.owed) / b.rate)
  redis.call('HSET', name, b.field, string.format('%.6f', now + b.until_full))
end
local function reply(seconds_left, short)
  redis.call('EXPIRE', name, seconds * 8)
  return {string.format('%.6f', seconds_left), short, string.format('%d', day)}
end

local limited, waiting = nil, 0
if ids_rate > 0 then
  limited = bucket('ids', ids_rate, math.max(1, ids_rate * ids_burst), debt)
  waiting = wait(limited)
  spend(limited, ids)
end
if not take then
  local field = 'day ' .. settled
  if tokens ~= 0 and redis.call('HEXISTS', name, field) == 1 then
    local used = tonumber(redis.call('HGET', name, field))
    redis.call('HSET', name, field, string.format('%d', math.max(0, used - tokens)))
  end
  return reply(limited and wait(limited) or 0, '')
end
if waiting > 0 then return reply(waiting, 'ids') end
local asked = nil
if asks_rate > 0 then
  asked = bucket('asks', asks_rate, math.max(1, asks_rate * asks_burst), 0)
  waiting = wait(asked)
  if waiting > 0 then return reply(waiting, 'asks') end
end
if per_day > 0 then
  local field = 'day ' .. string.format('%d', day)
  local used = tonumber(redis.call('HGET', name, field) or '0')
  if used + math.max(1, tokens) > per_day then return reply((day + 1) * seconds - now, 'tokens') end
  if used == 0 then
    for _, known in ipairs(redis.call('HKEYS', name)) do
      local old = tonumber(string.match(known, '^day (%d+)$'))
      if old and math.abs(day - old) > 400 then redis.call('HDEL', name, known) end
    end
  end
  redis.call('HSET', name, field, string.format('%d', used + tokens))
end
if asked then spend(asked, asks) end
return reply(0, '')
"""


class RedisLimits(LimitStore):
    """Implements `LimitStore`. Needs the library `redis` (the extra `gateway-redis`)."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        """`redis://`, `rediss://` or `unix://`; a password in it is never told.

        `clock` (seconds since 1970) stands in for Redis's own. Raises `UsageError`.
        """
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise UsageError(
                "Limits in a Redis need redis: pip install 'edgewise[gateway-redis]'."
            ) from error
        self._clock = clock
        try:
            parts = urlsplit(url)
            self.where = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}"
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=CROWD_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
                decode_responses=True,
                # Once: a connection that Redis closed meanwhile is no failure.
                retry=Retry(NoBackoff(), 1),
            )
        except (ValueError, TypeError) as error:
            # What it says may hold the password.
            raise UsageError(
                "That is no address of a Redis", hint="redis://[:PASSWORD@]HOST[:PORT][/NUMBER]"
            ) from error
        self._redis: Redis = Redis(connection_pool=pool)
        self._script = self._redis.register_script(_SCRIPT)

    async def open(self) -> None:
        """Raises `UsageError` where Redis refuses the password, `LimitsDown` where it is away."""
        from redis.exceptions import AuthenticationError, AuthorizationError

        try:
            await self._run(ANYONE, "settle", Cost(0, 0, 0), 0)
        except LimitsDown as error:
            if isinstance(error.__cause__, AuthenticationError | AuthorizationError):
                raise UsageError(
                    f"The Redis at {self.where} refuses the password", hint="check its address"
                ) from error
            raise

    async def take(self, key: Key, cost: Cost) -> Granted:
        wait, short, day = await self._run(key, "take", cost, 0)
        return Granted(float(wait), short, int(day))

    async def settle(self, key: Key, day: int, *, unused: int, ids: int) -> float:
        return float((await self._run(key, "settle", Cost(0, ids, unused), day))[0])

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    async def _run(self, key: Key, call: str, cost: Cost, day: int) -> Any:
        from redis.exceptions import RedisError

        now = "" if self._clock is None else f"{self._clock():.6f}"
        rates = (key.asks_per_second, key.ids_per_second, key.tokens_per_day)
        rules = (ASKS_BURST_SECONDS, IDS_BURST_SECONDS, MOST_DEBT, DAY_SECONDS, ROUNDING)
        try:
            return await self._script(
                keys=[f"edgewise:limits:{key.name}"], args=[now, call, *rates, *cost, *rules, day]
            )
        except (RedisError, OSError, TimeoutError) as error:
            raise LimitsDown(f"{self.where}: {type(error).__name__}") from error


ANYONE = Key(name="nobody", sha256="", created="", asks_per_second=0, ids_per_second=0)
"""Whose limits are asked for to see whether Redis answers."""
