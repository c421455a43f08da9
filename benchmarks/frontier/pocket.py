"""The systems of the pocket pair, each twice: as fast as it goes for quality, and at a pace."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.paced_engine import PacedEngine
from edgewise.addresses import bundled
from edgewise.cloud.engine import LlamaServer
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.opening import open_router
from edgewise.routers.named import router_named
from edgewise.settings import Settings
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.frontier.billing import MeasuredAnswer, MeasuredSystem
from edgewise_lab.bench.frontier.pair_systems import PLACE_NOTE, PairSystems
from edgewise_lab.bench.frontier.report import CLOUD, EDGE
from edgewise_lab.bench.link import http_target
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, EnginePace, Pace
from edgewise_lab.evaluation.calibration import thresholds_for
from edgewise_lab.evaluation.plan import contender_named
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.base import Task
from tests.llama_server_process import llama_server
from tests.pocket_models import MID

SLOWER = 1.45
"""How many times as slow as the edge the larger edge is: by the sizes of the two."""

SPECULATE = 16
SERVER = {"n_parallel": 4, "n_ctx": 2048, "cache_ram_mib": 0}
"""Slots for the consults that fly at once; a prompt that is not in one of them is read again."""

MAIN_SHARE = 0.05
MAIN = "bundled at 5%"
UNTRAINED = ("entropy", "max-prob", "margin", "random")

Make = Callable[[], MeasuredSystem]

NOTES = {"commit point": PLACE_NOTE}


class Twice(NamedTuple):
    """A system without pace and link, and with both."""

    quality: Make
    timed: Make


class _Engine(NamedTuple):
    """A cloud that is checked, and the systems over it."""

    cloud: LlamaServer
    systems: PairSystems


class Pocket:
    """The bundled pair, its cloud in a llama-server; everything ends with `stack`."""

    def __init__(self, stack: ExitStack, trip: float, held_out: Task) -> None:
        """`trip` in seconds; thresholds that no card has are set on `held_out`."""
        self._stack, self._held_out = stack, held_out
        self.pace, self._trip = EnginePace(), trip
        self.edge = self._model(bundled("edge"))
        url = stack.enter_context(llama_server(bundled("cloud"), flags=SERVER))
        paced = PacedEngine(url, self.pace)
        stack.callback(paced.close)
        link = Link(*http_target(paced.url), Quality(round_trip=trip))
        stack.callback(link.close)
        self.max_tokens = held_out.max_tokens
        self.near = self._engine(url, UNPACED, None)
        self.far = self._engine(link.url, HALF_BILLION, link)

    def systems(self, shares: list[float], store: Store[MeasuredAnswer]) -> dict[str, Twice]:
        """By the names of their rows; making one may set a threshold first."""
        near, far = self.near.systems, self.far.systems
        found = {
            EDGE: Twice(near.edge, far.edge),
            "larger edge": Twice(
                lambda: near.larger_edge(self._model(MID), UNPACED),
                lambda: far.larger_edge(self._model(MID), HALF_BILLION.times(SLOWER)),
            ),
            CLOUD: Twice(near.cloud, far.cloud),
        }
        router, card = open_router(Settings(), self.edge)
        assert card is not None
        for share in sorted({*shares, MAIN_SHARE}):
            threshold = card.threshold(share)
            if threshold is None:
                raise ValueError(f"no threshold for {share}; known: {sorted(card.thresholds)}")
            found[f"bundled at {100 * share:g}%"] = self._pair(router, lambda at=threshold: at)
        at = card.threshold(MAIN_SHARE)
        assert at is not None
        found[f"{MAIN}, waiting"] = self._pair(router, lambda: at, speculate=0)
        for name in UNTRAINED:
            found[f"{name} at 5%"] = self._pair(
                router_named(name), lambda name=name: self._threshold(name, store)
            )
        found["commit point"] = Twice(
            lambda: near.commit_point(0), lambda: far.commit_point(SPECULATE)
        )
        return found

    def _pair(
        self, router: Any, threshold: Callable[[], float], speculate: int = SPECULATE
    ) -> Twice:
        # What is guessed meanwhile changes no answer.
        return Twice(
            lambda: self.near.systems.pair(router, threshold(), 0),
            lambda: self.far.systems.pair(router, threshold(), speculate),
        )

    def _threshold(self, name: str, store: Store[MeasuredAnswer]) -> float:
        router = contender_named(name)
        find = partial(
            thresholds_for,
            router=router.router,
            task=self._held_out,
            edge=self.edge,
            cloud=self.near.cloud,
        )
        return router.thresholds([MAIN_SHARE], find, store)[MAIN_SHARE]

    def _engine(self, url: str, pace: Pace, link: Link | None) -> _Engine:
        cloud = LlamaServer(url)
        self._stack.callback(cloud.close)
        cloud.check_vocabulary(self.edge.tokenizer)
        systems = PairSystems(
            self.edge, cloud, self.max_tokens, pace=pace, link=link, seconds=self.pace.of
        )
        self._stack.callback(systems.close)
        return _Engine(cloud, systems)

    def _model(self, path: Path) -> EdgeModel:
        return self._stack.enter_context(closing(LlamaModel(path, threads=1)))
