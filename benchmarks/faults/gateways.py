"""Two gateways behind one address: the one that serves is killed or drained at every token."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.faults.processes import Service, gateway_service
from benchmarks.faults.rig import answer_at, positions, whole, written
from benchmarks.faults.table import Row, told
from edgewise.loop.health import Breaker
from edgewise.testing.link import Link
from tests.doubles.scripted_engine import ScriptedEngine


def gateway_faults() -> list[Row]:
    """A device's session moves to the other gateway; both are processes."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engine = ScriptedEngine(script=written)
        stack.callback(engine.close)
        pair = [gateway_service([engine.url], Path(folder), name=name) for name in "ab"]
        for gateway in pair:
            stack.callback(gateway.close)
        link = Link("127.0.0.1", pair[0].port)
        stack.callback(link.close)
        return [
            _row("a gateway of two is killed", link, pair, Service.kill),
            _row("a gateway of two is drained", link, pair, Service.terminate),
        ]


def _at(position: int, act: Callable[[], None]) -> Callable[[int], None]:
    def breaks(number: int) -> None:
        if number == position:
            act()

    return breaks


def _moved(link: Link, serving: Service, other: Service, end: Callable[[Service], None]) -> None:
    link.target = ("127.0.0.1", other.port)
    end(serving)


def _row(name: str, link: Link, pair: list[Service], end: Callable[[Service], None]) -> Row:
    tries = seen = lost = 0
    reasons: list[str] = []
    for position in positions():
        serving, other = pair
        before = link.connections

        breaks = _at(position, partial(_moved, link, serving, other, end))
        try:
            answer = answer_at(link.url, None, breaks, Breaker())
        except Exception:
            lost += 1
        else:
            lost += not whole(answer)
            reasons += [str(token.reason) for token in answer.tokens]
        tries += 1
        # A gateway that is drained hands the last answer over with its last token.
        serving.wait()
        seen += link.connections - before > 1 or position == positions()[-1]
        serving.start()
        pair.reverse()
    return Row(name, tries, seen, lost, 0, 0, told(reasons))
