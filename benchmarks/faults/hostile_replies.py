"""Replies that no engine should give, at a device with a real edge model and at a gateway.

The device is a process of its own with the bundled edge model, whose every token is asked for; the
engine would write what the edge writes. Straight at the engine in every dialect, then through a
gateway that is a process as well.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.faults.processes import Device, Service, gateway_service, watched
from benchmarks.faults.replies import ELSEWHERE, SLOW, kinds
from benchmarks.faults.table import Row, told
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


class Found(NamedTuple):
    """Of one kind at one site, `way`."""

    tries: int
    seen: int
    lost: int
    processes: int
    watchers: int
    reasons: tuple[str, ...]
    way: str


def replies(only: Sequence[str] = (), tokens: int = TOKENS) -> list[Row]:
    """A row a kind, over all dialects and both ways."""
    found: dict[str, list[Found]] = {}
    for made in sites(tokens):
        for name, misdeed in kinds(made.size).items():
            if not only or name in only:
                found.setdefault(name, []).append(tried(made, name, misdeed, tokens))
    return [_row(name, each) for name, each in found.items()]


def verified_replies(tokens: int = TOKENS) -> list[Row]:
    """A row a kind that is no wrong completion, over both ways: the engine verifies."""
    found: dict[str, list[Found]] = {}
    for made in sites(tokens, ("llama-server",)):
        for name, misdeed in kinds(made.size).items():
            if not isinstance(misdeed, Twisted):
                found.setdefault(name, []).append(tried(made, name, misdeed, tokens, "exact"))
    return [_row(name, each) for name, each in found.items()]


def tried(site: Site, name: str, misdeed: Misdeed, tokens: int, verify: str = "off") -> Found:
    """One answer of which every consult is answered so."""
    engine, gateway = site.engine, site.gateway
    before, strays, ended = engine.faults, engine.strays[ELSEWHERE], site.device.ended
    engine.fault = lambda number: misdeed
    answer = site.device.answer(SHORT if name in SLOW else DEADLINE, tokens, verify)
    engine.fault = lambda number: None
    dead = gateway.check() if gateway is not None else 0
    blind = gateway is not None and not watched(engine)
    seen = engine.faults - before
    # Whoever follows a redirect is lost as well.
    lost = int(answer.get("ids") != site.quiet) + engine.strays[ELSEWHERE] - strays
    tries = answer.get("consults", min(seen, tokens))
    return Found(
        # Blocks that wait their turn may not get there.
        tries if verify == "off" else min(tries, seen),
        seen,
        lost,
        dead + site.device.ended - ended,
        int(blind),
        tuple(answer.get("reasons", [answer.get("error", "")])),
        site.way,
    )


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
            gateway = gateway_service([engine.url], folder)
            stack.callback(gateway.close)
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


def _row(name: str, each: Sequence[Found]) -> Row:
    reasons = told(reason for found in each for reason in found.reasons)
    sums = [sum(column) for column in zip(*(found[:5] for found in each), strict=True)]
    where = [found.way for found in each if found.lost or found.processes or found.watchers]
    return Row(name, *sums, f"{reasons} (at {'; '.join(where)})" if where else reasons)


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
    tries = seen = 0
    lost: list[str] = []
    ended = device.ended
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
        tries += 1
        seen += engine.faults > before
        if "error" in reply and not reply["own"]:
            lost.append(f"{name}: {reply['error'][:60]}")
    where = path or DIALECTS[dialect].path
    device.open(engine.url, dialect)
    return Row(
        f"{dialect}: {where}", tries, seen, len(lost), device.ended - ended, note="; ".join(lost)
    )


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
            tries = seen = dead = blind = 0
            for misdeed in chosen[:: max(1, len(chosen) // most)]:
                before, found = made.engine.faults, _lied_to(made, path, misdeed)
                tries += 1
                seen += made.engine.faults > before
                dead += made.gateway.check()
                blind += not found
            rows.append(Row(f"{path} after a restart", tries, seen, 0, dead, blind))
    return rows


def _lied_to(made: Site, path: str, misdeed: Misdeed) -> bool:
    """Whether the gateway finds the way back once the engine is well."""
    engine, gateway = made.engine, made.gateway
    assert gateway is not None
    engine.stop()
    _until(lambda: not gateway.is_ready())
    engine.aside = lambda asked: misdeed if asked == path else None
    before = engine.faults
    engine.start()
    _until(lambda: engine.faults > before)
    engine.aside = lambda asked: None
    return _until(gateway.is_ready)


def _until(holds: Callable[[], bool], seconds: float = 8.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
