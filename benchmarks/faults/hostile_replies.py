"""Replies that no engine should give, at a device with a real edge model and at a gateway.

The device is a process of its own with the bundled edge model, whose every token is asked for; the
engine would write what the edge writes. Straight at the engine in every dialect, then through a
gateway that is a process as well.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.faults.processes import Device, Service, gateway_service, watched
from benchmarks.faults.replies import ELSEWHERE, SLOW, kinds
from benchmarks.faults.table import Row
from benchmarks.shared import until
from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import Misdeed, ScriptedEngine, Twisted

TOKENS = 17
DEADLINE, SHORT = 1.0, 0.15
"""Of a consult, seconds; the short one where every one of them runs into it."""


class Site(NamedTuple):
    """A device, the engine it asks, and perhaps a gateway between them."""

    way: str
    device: Device
    engine: ScriptedEngine
    gateway: Service | None
    quiet: list[int]

    @property
    def size(self) -> int:
        """Of the vocabulary."""
        return self.engine.tokenizer.size


def replies(only: Sequence[str] = (), tokens: int = TOKENS) -> list[Row]:
    """A row a kind, over all dialects and both ways."""
    rows: dict[str, Row] = {}
    for made in sites(tokens):
        for name, misdeed in kinds(made.size).items():
            if not only or name in only:
                tried(made, rows.setdefault(name, Row(name)), misdeed, tokens)
    return list(rows.values())


def verified_replies(tokens: int = TOKENS) -> list[Row]:
    """A row a kind that is no wrong completion, over both ways: the engine verifies."""
    rows: dict[str, Row] = {}
    for made in sites(tokens, ("llama-server",)):
        for name, misdeed in kinds(made.size).items():
            if not isinstance(misdeed, Twisted):
                tried(made, rows.setdefault(name, Row(name)), misdeed, tokens, "exact")
    return list(rows.values())


def tried(site: Site, row: Row, misdeed: Misdeed, tokens: int, verify: str = "off") -> None:
    """One answer of which every consult is answered so; the row gets what came of it."""
    engine, gateway = site.engine, site.gateway
    before, strays, ended = engine.faults, engine.strays[ELSEWHERE], site.device.ended
    engine.fault = lambda number: misdeed
    answer = site.device.answer(SHORT if row.fault in SLOW else DEADLINE, tokens, verify)
    engine.fault = lambda number: None
    ended = site.device.ended - ended + (gateway.check() if gateway is not None else 0)
    blind = gateway is not None and not watched(engine)
    # Whoever follows a redirect is lost as well.
    lost = int(answer.get("ids") != site.quiet) + engine.strays[ELSEWHERE] - strays
    seen = engine.faults - before
    tries = answer.get("consults", min(seen, tokens))
    # Blocks that wait their turn may not get there.
    row.tries += tries if verify == "off" else min(tries, seen)
    row.seen, row.lost = row.seen + seen, row.lost + lost
    row.processes, row.watchers = row.processes + ended, row.watchers + blind
    row.reasons |= {*answer.get("reasons", [answer.get("error", "")])}
    if lost or ended or blind:
        row.note = f"{row.note}; {site.way}".removeprefix("; ")


def sites(tokens: int, dialects: Sequence[Dialect] = tuple(DIALECTS)) -> Iterator[Site]:
    """Every dialect, straight and through a gateway."""
    for dialect in dialects:
        for way in ("straight", "gateway"):
            with site(dialect, way, tokens) as made:
                yield made


@contextmanager
def site(dialect: Dialect, way: str, tokens: int) -> Iterator[Site]:
    with ExitStack() as stack:
        edge = stack.enter_context(LlamaModel(bundled("edge"), threads=1))
        device = stack.enter_context(closing(Device()))
        alone = device.alone(tokens)
        engine = ScriptedEngine(dialect=dialect, tokenizer=edge.tokenizer, script=_repeating(alone))
        stack.callback(engine.close)
        gateway = None
        if way == "gateway":
            folder = Path(stack.enter_context(TemporaryDirectory()))
            gateway = gateway_service(stack, [engine.url], folder)
        url = gateway.url if gateway is not None else engine.url
        opened = device.open(url, "gateway" if gateway is not None else dialect)
        assert "error" not in opened, opened
        made = Site(f"{dialect}, {way}", device, engine, gateway, alone["ids"])
        quiet = device.answer(DEADLINE, tokens)
        assert quiet["ids"] == alone["ids"], (made.way, quiet)
        assert quiet["cloud"] == len(alone["ids"]), (made.way, quiet)
        yield made


def _repeating(alone: dict[str, Any]) -> Callable[[Sequence[int]], int]:
    """The engine writes what the edge does; something else after any other prompt."""
    prompt, written = alone["prompt"], alone["ids"]

    def script(ids: Sequence[int]) -> int:
        offset = len(ids) - len(prompt)
        return written[offset] if 0 <= offset < len(written) else 5

    return script


PROBED = ("/health", "/v1/models", "/tokenize")


def probes() -> list[Row]:
    """The same kinds while a device probes an engine: it refuses with a sentence, or goes on."""
    rows: list[Row] = []
    for dialect in DIALECTS:
        with site(dialect, "straight", 1) as made:
            rows.append(_probed(made, dialect, None))
            rows += [_probed(made, dialect, path) for path in PROBED]
    return rows


def _probed(made: Site, dialect: Dialect, path: str | None) -> Row:
    """Every kind at one path, None for that of the consults."""
    engine, device = made.engine, made.device
    row, ended = Row(f"{dialect}: {path or DIALECTS[dialect].path}"), device.ended
    for name, misdeed in kinds(made.size).items():
        if name in SLOW or (path is not None and isinstance(misdeed, Twisted)):
            continue
        before = engine.faults
        if path is None:
            engine.fault = lambda number, misdeed=misdeed: misdeed
        else:
            engine.aside = lambda asked, misdeed=misdeed: misdeed if asked == path else None
        reply = device.open(engine.url, dialect)
        engine.fault, engine.aside = (lambda number: None), (lambda asked: None)
        lost = "error" in reply and not reply["own"]
        row.tried(seen=engine.faults > before, lost=lost)
        if lost:
            row.note += f"{name}: {reply['error'][:60]}; "
    device.open(engine.url, dialect)
    row.processes = device.ended - ended
    return row


def lies_to_the_watch(most: int = 24) -> list[Row]:
    """An engine comes back, and gives a gateway's watch such replies; then it is well again."""
    rows: list[Row] = []
    with site("llama-server", "gateway", 1) as made:
        assert made.gateway is not None
        chosen = [
            misdeed
            for name, misdeed in kinds(made.size).items()
            if not isinstance(misdeed, Twisted) and name not in SLOW
        ]
        for path in PROBED:
            rows.append(Row(f"{path} after a restart"))
            for misdeed in chosen[:: max(1, len(chosen) // most)]:
                before, found = made.engine.faults, _lied_to(made, path, misdeed)
                seen, ended = made.engine.faults > before, made.gateway.check()
                rows[-1].tried(seen=seen, ended=ended, blind=not found)
    return rows


def _lied_to(made: Site, path: str, misdeed: Misdeed) -> bool:
    """Whether the gateway finds the way back once the engine is well."""
    engine, gateway = made.engine, made.gateway
    assert gateway is not None
    engine.stop()
    until(lambda: not gateway.is_ready(), 8)
    engine.aside = lambda asked: misdeed if asked == path else None
    before = engine.faults
    engine.start()
    until(lambda: engine.faults > before, 8)
    engine.aside = lambda asked: None
    return until(gateway.is_ready, 8)
