"""Consults and prefetches of devices: from the ids of a frame to the reply."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.errors import CloudError, CloudUnavailable, EdgewiseError, UsageError
from edgewise.gateway.fleet import BUSY_SECONDS, Busy, Fleet
from edgewise.gateway.metrics import GatewayMetrics
from edgewise.gateway.sessions import Session
from edgewise.keys.keys import ANYBODY, Key
from edgewise.keys.limits import KeyLimits, OverLimit
from edgewise.wire.protocol import Ask, Failed, Ledger, Reply, request_id, unpacked

_SAID = {
    "timeout": "The engine did not answer in time.",
    "unavailable": "The engine is not ready.",
    "refused": "The engine refuses the gateway's key.",
    "rejected": "The engine declined the request, for instance for its length.",
    "protocol": "The engine's reply was not what it promises.",
}

log = structlog.get_logger("edgewise.gateway")


class SessionPrefix(NamedTuple):
    """The ids of a session that a frame means. `take_fresh` counts ids that are not charged yet."""

    ids: Ledger
    session: Session
    key: Key
    take_fresh: Callable[[], int]

    def client(self) -> Client:
        """Whose consult it is. A key is a tenant: no other one may learn what it asked."""
        tenant = "" if self.key is ANYBODY else self.key.name
        return Client(self.session.name, self.session.salt, tenant=tenant)


class KeyedConsults:
    """The consults of all connections, within the limits of their keys. Sends no frames itself.

    Cached and computed prompt tokens, and the engine's time, are reported only if every engine
    separates caches by a salt, or if there are no keys: then all devices are one tenant.
    """

    def __init__(self, fleet: Fleet, limits: KeyLimits, metrics: GatewayMetrics) -> None:
        self.fleet, self.limits, self.metrics = fleet, limits, metrics

    async def answer(self, frame: Ask, prefix: SessionPrefix) -> Reply | Failed:
        """The reply to `frame`. Whatever goes wrong is a reply as well."""
        name = request_id(prefix.session.name, frame.ask)
        client = replace(prefix.client(), request_id=name)
        answer = await self._within_limits(frame, prefix, client)
        ended = answer.reason if isinstance(answer, Failed) else "answered"
        log.debug("consult", request_id=name, key=prefix.key.name, outcome=ended)
        if isinstance(answer, Failed) and answer.request_id is None:
            return replace(answer, request_id=name)
        return answer

    async def _within_limits(
        self, frame: Ask, prefix: SessionPrefix, client: Client
    ) -> Reply | Failed:
        key = prefix.key
        try:
            sampling = unpacked(frame.sampling)
            async with self.limits.spending(key, frame.n, ids=prefix.take_fresh()) as spent:
                async with asyncio.timeout(frame.deadline / 1000), prefix.session.turn:
                    ids, spent.asked = prefix.ids.ids, True
                    completion = await self.fleet.complete(ids, frame.n, sampling, client)
                spent.tokens, spent.computed = len(completion.ids), completion.computed or 0
        except OverLimit as over:
            return failed(frame, over.reason, str(over), over.retry_after)
        except Busy as busy:
            return failed(frame, "unavailable", str(busy), BUSY_SECONDS)
        except CloudError as error:
            return _engine_failed(frame, error, client)
        except UsageError as error:
            return failed(frame, "rejected", str(error))
        except TimeoutError:
            return failed(frame, "timeout", "The engine did not answer before the deadline.")
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.exception("consult failed in the gateway", request_id=client.request_id)
            return failed(frame, "unavailable", "The gateway failed; its log says how.")
        self.metrics.tokens.labels(key.name).inc(len(completion.ids))
        self.metrics.prompt.labels("hit").inc(completion.cached or 0)
        self.metrics.prompt.labels("miss").inc(completion.computed or 0)
        return _reply(frame, completion, metered=key is ANYBODY or self.fleet.salted)

    async def warm(self, prefix: SessionPrefix) -> None:
        """Let the engine compute prefetched ids, if the key may consult. Nobody waits for it."""
        ended = "superseded"
        try:
            if not await self.limits.may_prefetch(prefix.key, prefix.take_fresh()):
                ended = "limited"
                return
            async with prefix.session.turn:
                await self.fleet.prefill(prefix.ids.ids, prefix.client())
            ended = "warmed"
        except (EdgewiseError, Busy) as error:
            ended = "failed"
            log.debug("prefetch failed", error=type(error).__name__)
        except Exception:
            ended = "failed"
            log.exception("prefetch failed in the gateway", session=prefix.session.name[:8])
        finally:
            self.metrics.prefetches.labels(ended).inc()


def failed(frame: Ask, reason: str, message: str, seconds: float | None = None) -> Failed:
    """To be tried again after so many seconds. A frame holds 49 days at most."""
    later = None if seconds is None else min(int(1000 * seconds) + 1, (1 << 32) - 1)
    return Failed(frame.ask, reason, message, later)


def _engine_failed(frame: Ask, error: CloudError, client: Client) -> Failed:
    """An engine's message may hold parts of the prompt, so the device gets the reason alone."""
    log.warning(
        "consult failed",
        reason=error.reason,
        request_id=client.request_id,
        engine_request_id=error.request_id,
    )
    wait = error.retry_after if isinstance(error, CloudUnavailable) else None
    answer = failed(frame, error.reason, _SAID[error.reason], wait)
    return replace(answer, request_id=error.request_id)


def _reply(frame: Ask, completion: Completion, *, metered: bool) -> Reply:
    tops = completion.top if frame.top else ()
    return Reply(
        frame.ask,
        completion.ids,
        completion.logprobs,
        completion.stopped,
        completion.cached if metered else None,
        completion.computed if metered else None,
        completion.engine_seconds if metered else None,
        tuple(tuple((one.id, one.logprob) for one in top[: frame.top]) for top in tops),
    )
