"""One fault at one token: a device, a link, a gateway and an engine over real sockets.

A scripted edge model asks a scripted engine for every token; at one consult of the answer
something breaks. An answer is lost when it does not end, or is not what was to be written. Where
the engine verifies instead, the edge writes something else, in blocks of one token.
"""

import gc
import itertools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from benchmarks.faults.processes import HEALTH_SECONDS, watched
from benchmarks.faults.table import READ, Row
from benchmarks.shared import until
from edgewise.cloud.base import CloudModel
from edgewise.cloud.gateway import GatewayCloud
from edgewise.gateway import fleet
from edgewise.keys import keys
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, ScriptedEdge, replying
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.scripted_engine import Misbehaviour, ScriptedEngine
from tests.gateway.running import Running, gateway

PROMPT, TEXT, SLIPS = "sky: ", "The sky is blue.", "The sea is gray."
DEADLINE = 0.6
Verify = Literal["off", "on", "exact"]
SLOW_LINK = Quality(bandwidth=8 / 0.05)
"""A byte every 50 ms."""


NEVER = -1
"""No consult of an answer."""


def scripted(stack: ExitStack) -> ScriptedEngine:
    """An engine that writes `TEXT` until `stack` ends."""
    engine = ScriptedEngine(script=written)
    stack.callback(engine.close)
    return engine


def key_of(file: Path, name: str) -> str:
    """A new key without limits."""
    return keys.add_key(file, name, consults_per_second=0, tokens_per_day=0, sessions=0)


class Rig:
    """Device, link, gateway and engine, each of which can fail."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.engine, self.other = scripted(stack), scripted(stack)
        self.other.script, self.other.tokenizer = (lambda ids: 88), Other()
        self.keys = folder / "keys.json"
        self.secret = key_of(self.keys, "device")
        self._gateways = stack.enter_context(ExitStack())
        self.running = self._start(self.engine, None)
        self.link = Link("127.0.0.1", port_of(self.running.url))
        stack.callback(self.link.close)

    def restart(self, engine: ScriptedEngine | None = None) -> None:
        """Kill the gateway, with everything it knows, and start another in its place."""
        port = port_of(self.running.url)
        self._gateways.close()
        self.running = self._start(engine or self.engine, port)

    def _start(self, engine: ScriptedEngine, port: int | None) -> Running:
        self.serving = engine
        made = gateway([engine.url], keys=self.keys, port=port)
        return self._gateways.enter_context(made)


class Other(ByteTokenizer):
    """Another vocabulary."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [token ^ 1 for token in super().encode(text)]


class Tireless(Breaker):
    """Never opens: every token is asked for, however often that fails."""

    @property
    def is_open(self) -> bool:
        return False

    def allow(self) -> bool:
        return True


def nothing() -> None:
    """What breaks where nothing does."""


def answer_at(
    url: str,
    key: str | None,
    position: int,
    breaks: Callable[[], None],
    breaker: Breaker,
    verify: Verify = "off",
) -> Answer | Exception:
    """An answer of a new device at a gateway, or what keeps it from one."""
    return answer_of(GatewayCloud(url, key=key), position, breaks, breaker, verify)


def answer_of(
    cloud: CloudModel,
    position: int,
    breaks: Callable[[], None],
    breaker: Breaker,
    verify: Verify = "off",
) -> Answer | Exception:
    """An answer of a new device that asks `cloud`, which is closed then.

    Something `breaks` before its consult `position`.
    """
    text, unsure = (TEXT, ()) if verify == "off" else (SLIPS, positions())
    edge = ScriptedEdge(replying(text, prompt=PROMPT, unsure=unsure))
    numbers = itertools.count()

    def before() -> None:
        if next(numbers) == position:
            breaks()

    def told(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        before()
        return send()

    try:
        cloud.check_vocabulary(edge.tokenizer)
        decoder = Decoder(
            edge,
            router=Constant(1.0) if verify != "off" else _Telling(before),
            policy=Policy(threshold=0.5, deadline=DEADLINE, verify=verify),
            cloud=WrappedCloud(cloud, told) if verify != "off" else cloud,
            breaker=breaker,
        )
        return decoder.generate(edge.tokenizer.encode_prompt(PROMPT), max_tokens=64)
    except Exception as error:
        # Whatever it is, there is no answer; the row says so.
        return error
    finally:
        cloud.close()


def whole(answer: Answer | Exception, verify: Verify = "off", *, into: Row | None = None) -> bool:
    """It ended, and is what was to be written: what nobody read is the edge's.

    A row gets `into` it why tokens are whose they are.
    """
    if isinstance(answer, Exception):
        reasons = {type(answer).__name__}
    else:
        reasons = {str(token.reason) for token in answer.tokens}
    if into is not None:
        into.reasons |= reasons
    if isinstance(answer, Exception):
        return False
    edge, cloud = ([*text.encode(), EOS] for text in (TEXT if verify == "off" else SLIPS, TEXT))
    wanted = [
        (cloud if token.reason in READ else edge)[token.index]
        for token in answer.tokens[: len(cloud)]
    ]
    return [token.id for token in answer.tokens] == wanted and answer.finish_reason == "stop"


class _Telling(Constant):
    """Always asks, and says so before."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__(1.0)
        self._before = before

    def score(self, step: object) -> float:
        self._before()
        return 1.0


Break = Callable[[Rig], None]


def _engine(fault: Misbehaviour) -> Break:
    """The next consult at the engine."""

    def apply(rig: Rig) -> None:
        at = rig.engine.asked
        rig.engine.fault = lambda number: fault if number == at else None

    return apply


def _wrong_hash(rig: Rig) -> None:
    sessions = rig.running.gateway.sessions
    # What the device has pushed comes a little later.
    until(lambda: bool(sessions.ids), 5)
    for session in sessions.all():
        session.ledger.put(0, [0] * len(session.ledger.ids))


def _expired(rig: Rig) -> None:
    for session in rig.running.gateway.sessions.all():
        rig.running.gateway.sessions.forget(session)
    rig.link.cut()


def _revoked(rig: Rig) -> None:
    keys.revoke_key(rig.keys, "device")
    rig.secret = ""
    time.sleep(keys.CHECK_SECONDS * 1.2)


def _restored(rig: Rig) -> None:
    """What every fault leaves as it found it."""
    rig.engine.fault = lambda number: None
    rig.link.quality = Quality()
    if not rig.engine.listening:
        rig.engine.start()
    if rig.serving is not rig.engine:
        rig.restart()
    rig.link.restore()
    if not rig.secret:
        rig.secret = key_of(rig.keys, "device")
        time.sleep(keys.CHECK_SECONDS * 1.2)
    while not rig.running.gateway.fleet.up:
        time.sleep(0.05)


FAULTS: dict[str, Break] = {
    "gateway killed and restarted": Rig.restart,
    "gateway of another vocabulary in its place": lambda rig: rig.restart(rig.other),
    "engine killed": lambda rig: rig.engine.stop(),
    "engine hangs": _engine("hang"),
    "engine resets the connection": _engine("reset"),
    "engine answers garbage": _engine("garbage"),
    "TCP reset": lambda rig: rig.link.cut(),
    "one byte per 50 ms": lambda rig: setattr(rig.link, "quality", SLOW_LINK),
    "link gone": lambda rig: rig.link.refuse(),
    "half-open connection": lambda rig: rig.link.stall(),
    "garbage frame": lambda rig: rig.link.spoil(lambda data: b"\xff" * len(data)),
    "truncated frame": lambda rig: rig.link.spoil(
        lambda data: data[: len(data) // 2], hang_up=True
    ),
    "wrong hash": _wrong_hash,
    "expired session": _expired,
    "revoked key": _revoked,
}
QUICK = ("gateway killed and restarted", "engine resets the connection", "TCP reset")
"""Those that run at every second position in CI."""


class Outcome(NamedTuple):
    """Of one answer: whether it is whole, whether the fault was seen, and who stood in."""

    whole: bool
    seen: bool
    cloud: int


@contextmanager
def rig() -> Iterator[Rig]:
    """Everything, running; the gateway looks at its engine more often than usual."""
    usual, fleet.HEALTH_SECONDS = fleet.HEALTH_SECONDS, HEALTH_SECONDS
    try:
        with TemporaryDirectory() as folder, ExitStack() as stack:
            yield Rig(stack, Path(folder))
    finally:
        fleet.HEALTH_SECONDS = usual


def answered(
    rig: Rig, fault: Break, position: int, verify: Verify = "off", into: Row | None = None
) -> Outcome:
    """An answer with a fault before its consult `position`."""
    before, left = _traces(rig), list[bool]()

    def breaks() -> None:
        fault(rig)
        left.append(True)

    breaker = Breaker(clock=lambda: 0.0)
    answer = answer_at(rig.link.url, rig.secret, position, breaks, breaker, verify)
    if isinstance(answer, Exception):
        raise answer
    # A prefix or a connection anew, another gateway, a fault of the engine's, or a reason.
    *traces, connections = _traces(rig)
    reasons = {token.reason for token in answer.tokens} - {"critical", *READ}
    happened = connections - before[-1] > 1 or bool(reasons) or traces != before[:-1]
    _restored(rig)
    usage = answer.usage
    cloud = usage.cloud_tokens + usage.verified_tokens
    return Outcome(whole(answer, verify, into=into), bool(left) and happened, cloud)


def positions() -> range:
    """Every token of the answer, its end included."""
    return range(len(TEXT) + 1)


def _traces(rig: Rig) -> list[Any]:
    """What a fault leaves behind: faults, the gateway, prefixes asked for again, connections."""
    made = rig.running.gateway
    asks = made.metrics.registry.get_sample_value(
        "edgewise_gateway_consults_total", {"outcome": "need_full"}
    )
    return [rig.engine.faults, made, asks or 0.0, rig.link.connections]


def link_faults() -> list[Row]:
    """Every fault before every token."""
    with rig() as made:
        before = memory()
        rows = [_row(made, name, fault) for name, fault in FAULTS.items()]
        rows[-1].note += f"; memory of all {before:.0f} MB before, {memory():.0f} after"
        return rows


def verified_faults() -> list[Row]:
    """The same while the engine verifies; every other answer is to be exactly its own."""
    with rig() as made:
        return [_row(made, name, fault, ("on", "exact")) for name, fault in FAULTS.items()]


def _row(rig: Rig, name: str, fault: Break, verify: Sequence[Verify] = ("off",)) -> Row:
    row, cloud = Row(name), 0
    for position, way in zip(positions(), itertools.cycle(verify), strict=False):
        found = answered(rig, fault, position, way, row)
        row.tried(seen=found.seen, lost=not found.whole)
        cloud += found.cloud
    row.watchers = int(not watched(rig.engine))
    row.note = f"{cloud / row.tries:.1f} cloud tokens an answer"
    return row


def written(ids: Sequence[int]) -> int:
    """The engine writes the same text as the edge."""
    offset = len(ids) - len(PROMPT)
    return TEXT.encode()[offset] if 0 <= offset < len(TEXT) else EOS


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def memory() -> float:
    """Resident memory of this process, gateway and all, MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
