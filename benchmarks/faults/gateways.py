"""Two gateways behind one address: the one that serves is killed or drained at every token."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.faults.processes import Service, gateway_service
from benchmarks.faults.rig import answer_at, positions, scripted, whole
from benchmarks.faults.table import Row
from edgewise.loop.health import Breaker
from edgewise.testing.link import Link


def gateway_faults() -> list[Row]:
    """A device's session moves to the other gateway; both are processes."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        url = scripted(stack).url
        pair = [gateway_service(stack, [url], Path(folder), name=name) for name in "ab"]
        link = Link("127.0.0.1", pair[0].port)
        stack.callback(link.close)
        return [
            _row("a gateway of two is killed", link, pair, Service.kill),
            _row("a gateway of two is drained", link, pair, Service.terminate),
        ]


def _row(name: str, link: Link, pair: list[Service], end: Callable[[Service], None]) -> Row:
    row = Row(name)
    for position in positions():
        serving, other = pair
        before = link.connections

        def moves(serving: Service = serving, other: Service = other) -> None:
            link.target = ("127.0.0.1", other.port)
            end(serving)

        answer = answer_at(link.url, None, position, moves, Breaker())
        # A gateway that is drained hands the last answer over with its last token.
        serving.wait()
        moved = link.connections - before > 1 or position == positions()[-1]
        row.tried(seen=moved, lost=not whole(answer, into=row))
        serving.start()
        pair.reverse()
    return row
