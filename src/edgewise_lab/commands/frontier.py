"""`edgewise bench frontier`: compare a pair with all alternatives in quality, time and cost."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from msgspec.structs import replace

from edgewise import opening
from edgewise.cli import options, render
from edgewise.cli.options import DRAWS, ONE_VOCABULARY, takes
from edgewise.cloud.base import CloudModel
from edgewise.cloud.hosts import bearer
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.settings import Settings
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.frontier.report import Frontier, MeasuredAnswers
from edgewise_lab.bench.frontier.report import frontier as compared
from edgewise_lab.bench.frontier.timed import (
    PLACE_NOTE,
    SPANS_NOTE,
    MeasuredAnswer,
    PairSystems,
    Timed,
    measure,
)
from edgewise_lab.bench.link import http_target
from edgewise_lab.bench.pace import UNPACED, EnginePace, Pace
from edgewise_lab.bench.pace import measured as measured_pace
from edgewise_lab.commands import shared
from edgewise_lab.commands.eval import contenders_of, shares_of
from edgewise_lab.commands.shared import connected_cloud, pace_named, served, without_cloud
from edgewise_lab.evaluation.calibration import Answers, Calibrated, thresholds_for
from edgewise_lab.evaluation.plan import Contender, manifest
from edgewise_lab.evaluation.report import CLOUD, EDGE, Row
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.systems import require_room
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.named import with_calibration

EMULATED_TRIP = 50.0
"""Default emulated round trip to the bundled cloud, which runs on this machine, in ms."""

COMMIT_POINT, LARGER_EDGE = "commit point", "larger edge"


# Answers are greedy; a consult asks for one token; a cloud that fails ends the run.
@takes(
    *(*ONE_VOCABULARY, "speculate", "ctx", "threads"),
    reads=["cloud_key", "edge_key", "router", "cloud_share", "gpu_layers"],
    unaffected=[*DRAWS, "on_cloud_error", "on_edge_error"],
)
def frontier(
    task: shared.TaskName = "pocketqa",
    *,
    data: shared.Data = None,
    check: shared.Check = None,
    max_tokens: shared.MaxTokens = None,
    chosen: Settings,
    router: shared.Routers = None,
    cloud_share: shared.LinkShares = None,
    larger_edge: Annotated[
        str | None, typer.Option(help="Address of a larger edge model, which answers alone.")
    ] = None,
    round_trip: Annotated[
        float | None,
        typer.Option(min=0, max=10_000, help="Emulated round trip, ms; default: the real link."),
    ] = None,
    pace: shared.PaceName = None,
    questions: Annotated[int, typer.Option(min=2, help="Questions to answer.")] = 12,
    calibration: shared.ForThresholds = 60,
    out: shared.Out = None,
    json: options.Json = False,
) -> None:
    """A pair beside edge, larger edge, streamed cloud and whole questions: quality, time, bills.

    The bundled pair answers through a gateway that is started for it, 50 ms away, its edge as slow
    as a 0.5B and its cloud as a large model.
    """
    shares = shares_of(cloud_share, chosen)
    tasks = with_calibration(
        task,
        "test",
        data=data,
        check=check,
        limit=questions,
        calibration=calibration,
        max_tokens=max_tokens,
    )
    shared.tell_of_code(tasks)
    wish = _Wish(chosen, tasks, tuple(router or [chosen.router]), tuple(shares), larger_edge, pace)
    found = _compared(wish, round_trip, out, hidden=json)
    _tell(found, json=json)


class _Wish(NamedTuple):
    """The command's options; `tasks` are the questions to answer and those to calibrate on.

    All rows are compared with the first router at the first share.
    """

    chosen: Settings
    tasks: tuple[Task, Task]
    routers: tuple[str | None, ...]
    shares: tuple[float, ...]
    larger: str | None
    pace: str | None

    @property
    def address(self) -> str:
        return opening.cloud_address(self.chosen)

    @property
    def slowed(self) -> bool:
        """Whether the cloud is slowed to a large model's speed: only the bundled one is."""
        return self.address == "bundled" and self.pace != "none"


class _Opened(NamedTuple):
    """The open models and the emulated link to the cloud (None: no emulation).

    `near` opens the cloud without the link. `pace` is the speed that the edge is slowed down to;
    `larger` is the larger edge model with its pace, if there is one.
    """

    edge: EdgeModel
    cloud: CloudModel
    near: Callable[[], CloudModel]
    link: Link | None
    pace: Pace
    larger: tuple[EdgeModel, Pace] | None


def _compared(wish: _Wish, round_trip: float | None, out: Path | None, *, hidden: bool) -> Frontier:
    """Answer all questions with every system and return the report."""
    asked, held_out = wish.tasks
    trip = EMULATED_TRIP if round_trip is None and wish.address == "bundled" else round_trip
    with ExitStack() as stack, render.progress(hidden=hidden) as progress:
        opened = stack.enter_context(_opened(wish, trip))
        require_room(asked, opened.edge, opened.cloud)
        contenders = contenders_of(wish.routers, wish.chosen, opened.edge, asked)
        conditions = _conditions(wish, trip)
        described = _manifest(wish, opened, contenders, conditions)
        store = Store(out, described, MeasuredAnswer)
        systems = PairSystems(
            opened.edge,
            opened.cloud,
            asked.max_tokens,
            pace=opened.pace,
            link=opened.link,
            key=bearer(wish.chosen, "cloud_key"),
            seconds=EnginePace().of if wish.slowed else None,
            slowed=wish.slowed,
        )
        stack.callback(systems.close)
        thresholds = {
            (one.name, share): value
            for one in contenders
            for share, value in _thresholds(one, wish, held_out, opened, store).items()
        }
        plan = _plan(wish, systems, contenders, thresholds, opened.larger)
        bar = progress.add_task("answers", total=len(plan) * len(asked.questions))
        found = {
            name: MeasuredAnswers(answers, answers, note=_note(name, systems))
            for name, make in plan.items()
            for answers in [
                measure(name, make, asked.questions, store, lambda: progress.advance(bar))
            ]
        }
    main = _named(contenders[0].name, wish.shares[0])
    return compared(found, main, conditions)


@contextmanager
def _opened(wish: _Wish, trip: float | None) -> Generator[_Opened]:
    chosen = wish.chosen
    with ExitStack() as stack:
        edge = stack.enter_context(closing(opening.open_edge(without_cloud(chosen))))
        pace = pace_named(wish.pace, chosen)
        larger = None
        if wish.larger is not None:
            named = replace(without_cloud(chosen), edge=wish.larger)
            model = stack.enter_context(closing(opening.open_edge(named)))
            larger = model, _larger_pace(pace, edge, model)
        url = stack.enter_context(_reached(wish, trip))
        link = None
        if trip is not None:
            link = Link(*http_target(url), Quality(round_trip=trip / 1000))
            stack.callback(link.close)

        def near() -> CloudModel:
            return connected_cloud(replace(chosen, cloud=url, cloud_hosts=None), edge)

        far = url if link is None else link.url
        cloud = connected_cloud(replace(chosen, cloud=far, cloud_hosts=None), edge)
        stack.callback(cloud.close)
        shared.require_writing(cloud, "a router")
        yield _Opened(edge, cloud, near, link, pace, larger)


@contextmanager
def _reached(wish: _Wish, trip: float | None) -> Generator[str]:
    """Yield the cloud's URL (a gateway is started for the bundled one) or its local address."""
    if (address := wish.address) == "none":
        raise UsageError("A frontier needs a cloud", hint="name one", setting="cloud")
    if address != "bundled" and not address.startswith("http"):
        if trip is not None:
            raise UsageError(
                f"A round trip applies only to a cloud at a URL, and {address!r} is loaded here",
                hint="leave it out, or name an engine's URL",
            )
        yield address
        return
    with served(wish.chosen) as url:
        yield url


def _larger_pace(pace: Pace, edge: EdgeModel, larger: EdgeModel) -> Pace:
    """Return the edge's pace scaled by the measured ratio of the two models' speeds."""
    if pace == UNPACED:
        return UNPACED
    return pace.times(measured_pace(larger).of(1) / measured_pace(edge).of(1))


def _plan(
    wish: _Wish,
    systems: PairSystems,
    contenders: list[Contender],
    thresholds: Mapping[tuple[str, float], float],
    larger: tuple[EdgeModel, Pace] | None,
) -> dict[str, Callable[[], Timed]]:
    """Return functions that make the systems, by the names of their rows in the report."""
    speculate = wish.chosen.speculate
    plan: dict[str, Callable[[], Timed]] = {EDGE.system: systems.edge}
    if larger is not None:
        plan[LARGER_EDGE] = lambda: systems.larger_edge(*larger)
    plan[CLOUD.system] = systems.cloud
    for one in contenders:
        for share in wish.shares:
            at, by = thresholds[one.name, share], one.router
            plan[_named(one.name, share)] = lambda at=at, by=by: systems.pair(by, at, speculate)
            if speculate and one is contenders[0]:
                waits = f"{_named(one.name, share)}, waiting"
                plan[waits] = lambda at=at, by=by: systems.pair(by, at, 0)
    if any(question.choices for question in wish.tasks[0].questions):
        plan[COMMIT_POINT] = lambda: systems.commit_point(speculate)
    return plan


def _thresholds(
    one: Contender, wish: _Wish, held_out: Task, opened: _Opened, store: Store[MeasuredAnswer]
) -> dict[float, float]:
    """Return the thresholds by share; missing ones are set on `held_out`, without link or pace."""

    def fresh(lacking: Sequence[float]) -> Mapping[float, Calibrated]:
        with closing(opened.near()) as cloud:
            answers = Answers(one.router, held_out, edge=opened.edge, cloud=cloud)
            return thresholds_for(lacking, answers)

    return one.thresholds(wish.shares, fresh, store)


def _conditions(wish: _Wish, trip: float | None) -> dict[str, object]:
    """Return the conditions of the measurement, which the report shows."""
    return {
        "task": wish.tasks[0].name,
        "edge": wish.chosen.edge,
        "cloud": wish.address,
        "round_trip_ms": trip,
        "edge_pace": wish.pace or ("0.5b" if wish.chosen.edge == "bundled" else "none"),
        "cloud_pace": EnginePace()._asdict() if wish.slowed else None,
        "speculate": wish.chosen.speculate,
    }


def _manifest(
    wish: _Wish, opened: _Opened, contenders: list[Contender], conditions: dict[str, object]
) -> dict[str, object]:
    described = manifest(*wish.tasks, opened.edge, opened.cloud)
    if opened.link is not None:
        # The link's port differs from run to run.
        engine = opened.cloud.id_engine
        described["cloud"] = f"{wish.address} {engine.described.model if engine else ''}"
    larger = None if opened.larger is None else opened.larger[0].fingerprint()
    routers = {one.name: one.identity for one in contenders}
    return {**described, **conditions, "larger_edge": larger, "routers": routers}


def _named(router: str, share: float) -> str:
    return f"{router} at {share:.1%}".replace(".0%", "%")


def _note(name: str, systems: PairSystems) -> str:
    if name == CLOUD.system and not systems.streams:
        return SPANS_NOTE
    return PLACE_NOTE if name == COMMIT_POINT else ""


def _tell(found: Frontier, *, json: bool) -> None:
    if json:
        print(msgspec.json.encode(found).decode())
        return
    first = found.systems[0]
    timed = 0 if first.timing is None else first.timing.answers
    title = f"{first.questions} questions, times and costs of {timed} of them"
    for table in shared.tables_of(title, [Row(one, {}) for one in found.systems], found.main):
        render.show(shared.drawn(table))
    for one in found.systems:
        if one.timing and one.timing.note:
            render.note(f"{one.system}: {one.timing.note}")
