"""Consults (questions to the cloud model) and prefetches of devices: from a frame to its reply."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.errors import CloudError, CloudUnavailable, EdgewiseError, UsageError
from edgewise.gateway.fleet import Fleet
from edgewise.gateway.metrics import GatewayMetrics
from edgewise.gateway.sessions import Session
from edgewise.keys.keys import ANYBODY, Key
from edgewise.keys.limits import KeyLimits, OverLimit
from edgewise.wire.protocol import MAX_IDS, Ask, Failed, Ledger, Reply, request_id, unpacked

# A prompt for each draft token has the whole prefix: without a bound one ask took gigabytes.
MOST_READ = 16 * MAX_IDS
"""Most ids that one verification may send to an engine that takes a prompt for each draft token:
enough for a block of 16, the longest of a device, behind the longest prefix."""

_SAID = {
    "timeout": "The engine did not answer in time.",
    "unavailable": "The engine is not ready.",
    "refused": "The engine refuses the gateway's key.",
    "rejected": "The engine declined the request, for instance for its length.",
    "protocol": "The engine's reply was not what it promises.",
}

log = structlog.get_logger("edgewise.gateway")


class SessionPrefix(NamedTuple):
    """The token ids that a device's request is about, with the device's session and key.

    `take_fresh` returns how many ids the device sent since its last call, to charge the key.
    """

    ids: Ledger
    session: Session
    key: Key
    take_fresh: Callable[[], int]

    def client(self, request_id: str = "") -> Client:
        """Return the `Client` (sender) of a request, which `request_id` names in logs."""
        tenant = "" if self.key is ANYBODY else self.key.name
        session = self.session
        return Client(session.name, session.salt, tenant=tenant, request_id=request_id)


class KeyedConsults:
    """Runs the consults and prefetches of all connections within the limits of their keys.

    With keys a `Reply` has cache counts and the engine's time only if every engine takes a salt,
    which keeps the caches of keys apart: else they could reveal what other keys asked.
    """

    def __init__(self, fleet: Fleet, limits: KeyLimits, metrics: GatewayMetrics) -> None:
        self.fleet, self.limits, self.metrics = fleet, limits, metrics

    async def answer(self, frame: Ask, prefix: SessionPrefix) -> Reply | Failed:
        """Run the consult that `frame` asks for on the ids of `prefix`; return the frame to send.

        The key is charged for ids sent or computed and for tokens written, one for a verification.
        An error, a missed deadline or a limit gives a `Failed`; only cancellation is raised.
        """
        key, name, wait = prefix.key, request_id(prefix.session.name, frame.ask), None
        noted = log.bind(request_id=name)
        try:
            sampling, verify = unpacked(frame.sampling), frame.verify
            self._require_answerable(frame, len(prefix.ids))
            # A verification writes nothing, and is paid like one token.
            most = frame.n + bool(verify)
            async with self.limits.spending(key, most, ids=prefix.take_fresh()) as spent:
                async with asyncio.timeout(frame.deadline / 1000), prefix.session.turn:
                    # A list only now: consults that wait hold 4 bytes an id.
                    ids, spent.asked = prefix.ids.ids, True
                    client = prefix.client(name)
                    completion = await self.fleet.complete(ids, frame.n, sampling, client, verify)
                spent.tokens = len(completion.ids) + bool(verify)
                spent.computed = completion.computed or 0
        except OverLimit as over:
            reason, message, wait = over.reason, str(over), over.retry_after
        except CloudError as error:
            # An engine's own message may hold parts of the prompt.
            reason, message = error.reason, _SAID[error.reason]
            wait = error.retry_after if isinstance(error, CloudUnavailable) else None
            noted.warning("consult failed", reason=reason, engine_request_id=error.request_id)
            name = error.request_id or name
        except UsageError as error:
            reason, message = "rejected", str(error)
        except TimeoutError:
            reason, message = "timeout", "The engine did not answer before the deadline."
        # Whatever an engine sets off is answered; a cancellation of this task itself is not.
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            noted.exception("consult failed in the gateway")
            reason, message = "unavailable", "The gateway failed; its log says how."
        else:
            noted.debug("consult", key=key.name, outcome="answered")
            return self._reply(frame, completion, key)
        noted.debug("consult", key=key.name, outcome=reason)
        return failed(frame, reason, message, wait, name)

    def _require_answerable(self, frame: Ask, held: int) -> None:
        """Raise `UsageError` for an `Ask` that no engine here could answer."""
        n, verify, able = frame.n, frame.verify, self.fleet.verifies
        few = f"Of {held} ids {verify} cannot be verified"
        read = 0 if self.fleet.reads_once else held * verify
        for wrong, message, hint in (
            (not n and not verify, "The ask is for nothing", "ask for n or verify of at least 1"),
            (n and verify, "An ask writes or verifies, not both", "let one of them be 0"),
            (verify and not able, "The gateway's engines cannot verify tokens", "ask without"),
            (verify and verify >= held, few, "send at least one id before"),
            (read > MOST_READ, few, "verify fewer in an ask"),
        ):
            if wrong:
                raise UsageError(message, hint=hint)

    def _reply(self, frame: Ask, completion: Completion, key: Key) -> Reply:
        # How much was cached, and the engine's time, can reveal what other keys asked. Without keys
        # all devices are one tenant.
        metered = key is ANYBODY or self.fleet.salted
        tops = completion.top if frame.top else ()
        self.metrics.tokens.labels(key.name).inc(len(completion.ids))
        self.metrics.verified.labels(key.name).inc(frame.verify)
        self.metrics.prompt.labels("hit").inc(completion.cached or 0)
        self.metrics.prompt.labels("miss").inc(completion.computed or 0)
        return Reply(
            frame.ask,
            completion.ids,
            completion.logprobs,
            completion.stopped,
            completion.cached if metered else None,
            completion.computed if metered else None,
            completion.engine_seconds if metered else None,
            tuple(tuple((one.id, one.logprob) for one in top[: frame.top]) for top in tops),
            tuple((one.logprob, one.id, one.best) for one in completion.verified),
        )

    async def prefetch(self, prefix: SessionPrefix) -> None:
        """Let the engine prefill its KV cache with `prefix`, unless a limit of the key forbids it.

        The key is charged for the ids that the device sent. Errors are only logged and counted.
        """
        ended = "superseded"
        try:
            if not await self.limits.may_prefetch(prefix.key, prefix.take_fresh()):
                ended = "limited"
                return
            async with prefix.session.turn:
                await self.fleet.prefill(prefix.ids.ids, prefix.client())
            ended = "computed"
        except (EdgewiseError, OverLimit) as error:
            ended = "failed"
            log.debug("prefetch failed", error=type(error).__name__)
        except Exception:
            ended = "failed"
            log.exception("prefetch failed in the gateway", session=prefix.session.name[:8])
        finally:
            self.metrics.prefetches.labels(ended).inc()


def failed(
    frame: Ask, reason: str, message: str, wait: float | None = None, request_id: str | None = None
) -> Failed:
    """Return the frame that reports a failed consult.

    `reason` is a `Fault`, such as "timeout". The device may try again after `wait` seconds.
    `request_id` names the request in the engine's log, else in the gateway's.
    """
    # The frame's field has 32 bits: 49 days in milliseconds.
    later = None if wait is None else min(int(1000 * wait) + 1, (1 << 32) - 1)
    return Failed(frame.ask, reason, message, later, request_id)
