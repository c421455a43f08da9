"""Consults and pushes of devices: from the ids of a frame to the reply."""

import asyncio
import time

import structlog
from msgspec.structs import replace

from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.errors import CloudError, CloudUnavailable, EdgewiseError, UsageError
from edgewise.gateway.fleet import Busy, Fleet
from edgewise.gateway.sessions import Session
from edgewise.gateway.telemetry import GatewayMetrics, Telemetry, outcome
from edgewise.keys.keys import ANYBODY, Key
from edgewise.keys.limits import KeyLimits, OverLimit, Spent, Unbilled
from edgewise.wire.protocol import Ask, Failed, Ledger, NeedFull, Reply, request_id, unpacked

WAITING_ASKS = 8
"""Consults of one session that may wait for their turn."""

AskReply = Reply | NeedFull | Failed
"""What a consult is answered with."""

_SAID = {
    "timeout": "The engine did not answer in time.",
    "unavailable": "The engine is not ready.",
    "refused": "The engine refuses the gateway's key.",
    "rejected": "The engine declined the request, for instance for its length.",
    "protocol": "The engine's reply was not what it promises.",
}

log = structlog.get_logger("edgewise.gateway")


class KeyedConsults:
    """The consults of all connections, within the limits of their keys. Sends no frames itself.

    A key is a tenant: no other key may learn from an engine's cache what it asked. Cached and
    computed prompt tokens, and the engine's time, are reported only if every engine separates
    caches by a salt, or if there are no keys: then all devices are one tenant.
    """

    def __init__(
        self, fleet: Fleet, limits: KeyLimits, metrics: GatewayMetrics, telemetry: Telemetry
    ) -> None:
        self._fleet, self._limits = fleet, limits
        self._metrics, self._telemetry = metrics, telemetry

    async def answer(
        self,
        frame: Ask,
        ids: Ledger | None,
        session: Session,
        key: Key,
        unbilled: Unbilled,
        *,
        others: int,
    ) -> AskReply:
        """The reply to `frame`, which means `ids` (None: the session does not hold them).

        `others` of the session's consults wait beside it. `unbilled` is charged to `key`. Whatever
        goes wrong is a reply as well.
        """
        if ids is None:
            return NeedFull(frame.ask)
        if others >= WAITING_ASKS:
            return _busy(frame, 0.1)
        name = request_id(session.name, frame.ask)
        about = {"edgewise.key": key.name, "edgewise.ids": len(ids), "edgewise.tokens": frame.n}
        with self._telemetry.consult(name, about) as trace:
            client = replace(_client(session, key), request_id=name, trace=trace)
            answer = await self._within_limits(frame, ids, session, key, unbilled, client)
            ended = answer.reason if isinstance(answer, Failed) else "answered"
            outcome(ended)
        log.debug("consult", request_id=name, key=key.name, outcome=ended)
        if isinstance(answer, Failed) and answer.request_id is None:
            return replace(answer, request_id=name)
        return answer

    async def _within_limits(
        self,
        frame: Ask,
        ids: Ledger,
        session: Session,
        key: Key,
        unbilled: Unbilled,
        client: Client,
    ) -> Reply | Failed:
        try:
            async with self._limits.spending(key, unbilled, frame.n) as spent:
                return await self._completion(frame, ids, session, key, client, spent)
        except OverLimit as over:
            later = None if over.retry_after is None else _milliseconds(over.retry_after)
            return Failed(frame.ask, over.reason, str(over), later)
        except TimeoutError:
            return Failed(frame.ask, "timeout", "The engine did not answer before the deadline.")
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.exception(
                "consult failed on the way to its completion", request_id=client.request_id
            )
            message = "The gateway failed; its log says how."
            return Failed(frame.ask, "unavailable", message)

    def ended(self, outcome: str, begun: float) -> None:
        """Count a consult that came at `begun` (monotonic seconds)."""
        self._metrics.asks.labels(outcome).inc()
        self._metrics.seconds.observe(time.monotonic() - begun)

    async def warm(self, ids: Ledger, session: Session, key: Key, unbilled: Unbilled) -> None:
        """Let the engine compute pushed ids, if `key` may make consults. Nobody waits for it."""
        outcome = "superseded"
        try:
            if not await self._limits.may_warm(key, unbilled):
                outcome = "limited"
                return
            client = _client(session, key)
            async with session.turn:
                await self._fleet.prefill(ids.ids, client)
            outcome = "warmed"
        except (EdgewiseError, Busy) as error:
            outcome = "failed"
            log.debug("push not warmed", error=type(error).__name__)
        except Exception:
            outcome = "failed"
            log.exception("push failed on the way to the engine", session=session.name[:8])
        finally:
            self._metrics.pushes.labels(outcome).inc()

    async def _completion(
        self, frame: Ask, ids: Ledger, session: Session, key: Key, client: Client, spent: Spent
    ) -> Reply | Failed:
        try:
            sampling = unpacked(frame.sampling)
            async with asyncio.timeout(frame.deadline / 1000), session.turn:
                whole, spent.asked = ids.ids, True
                completion = await self._fleet.complete(whole, frame.n, sampling, client)
        except Busy as busy:
            return _busy(frame, busy.retry_after)
        except CloudError as error:
            return _failed(frame, error, client)
        except UsageError as error:
            return Failed(frame.ask, "rejected", str(error))
        spent.tokens, spent.computed = len(completion.ids), completion.computed or 0
        self._count(completion, key)
        return _reply(frame, completion, metered=key is ANYBODY or self._fleet.salted)

    def _count(self, completion: Completion, key: Key) -> None:
        self._metrics.tokens.labels(key.name).inc(len(completion.ids))
        self._metrics.prompt.labels("hit").inc(completion.cached or 0)
        self._metrics.prompt.labels("miss").inc(completion.computed or 0)


def _client(session: Session, key: Key) -> Client:
    tenant = "" if key is ANYBODY else key.name
    return Client(session.name, session.salt, tenant=tenant)


def _busy(frame: Ask, wait: float) -> Failed:
    message = "Too many consults; try again later."
    return Failed(frame.ask, "unavailable", message, _milliseconds(wait))


def _milliseconds(seconds: float) -> int:
    """Rounded up, and at most what a frame can hold: 49 days."""
    return min(int(1000 * seconds) + 1, (1 << 32) - 1)


def _failed(frame: Ask, error: CloudError, client: Client) -> Failed:
    """An engine's message may hold parts of the prompt, so the device gets the reason alone."""
    log.warning(
        "consult failed",
        reason=error.reason,
        request_id=client.request_id,
        engine_request_id=error.request_id,
    )
    wait = error.retry_after if isinstance(error, CloudUnavailable) else None
    later = None if wait is None else _milliseconds(wait)
    return Failed(frame.ask, error.reason, _SAID[error.reason], later, error.request_id)


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
