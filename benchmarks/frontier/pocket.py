"""The systems of the pocket pair, each twice: as fast as it goes for quality, and at a pace."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from msgspec.structs import replace

from edgewise.addresses import Part, bundled
from edgewise.cloud.engine import LlamaServer
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.parts import open_router
from edgewise.routers.named import router_named
from edgewise.settings import Settings
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.frontier.base import MeasuredAnswer, MeasuredSystem
from edgewise_lab.bench.frontier.pair_systems import PLACE_NOTE, PairSystems
from edgewise_lab.bench.frontier.recorded import EngineTime
from edgewise_lab.bench.frontier.report import CLOUD, EDGE
from edgewise_lab.bench.frontier.speculative import Speculative
from edgewise_lab.bench.frontier.store import MeasuredStore
from edgewise_lab.bench.frontier.verifiers import LocalVerifier
from edgewise_lab.bench.link import http_target
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, Pace, PacedEdge
from edgewise_lab.bench.paced_engine import EnginePace, PacedEngine
from edgewise_lab.evaluation.calibration import thresholds_for
from edgewise_lab.evaluation.tasks.base import Question, Task
from tests.llama_server_process import llama_server

MID = 1.45
"""How many times as slow as the edge the larger edge is: by the sizes of the two."""

RUN_AHEAD = 16
SERVER = {"n_parallel": 4, "n_ctx": 2048, "cache_ram_mib": 0}
"""Slots for the consults that fly at once; a prompt that is not in one of them is read again."""

SPECULATION = {
    "speculative, drafts of 4": (False, 4),
    "speculative, pipelined, drafts of 1": (True, 1),
    "speculative, pipelined, drafts of 4": (True, 4),
}
"""Whether it drafts on while a draft flies, and tokens a draft: about the fastest each way, and one
with fewer requests."""

MAIN_SHARE = 0.05
MAIN = "bundled at 5%"
UNTRAINED = ("entropy", "max-prob", "margin", "random")

Make = Callable[[], MeasuredSystem]

NOTES = {
    "commit point": PLACE_NOTE,
    "speculative": "the cloud verifies in this process, its replies as late as over the link; it "
    "reads all tokens, so its share is of those alone that it wrote",
}


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
        self.edge = self._model("edge")
        url = stack.enter_context(llama_server(bundled("cloud"), flags=SERVER))
        paced = PacedEngine(url, self.pace)
        stack.callback(paced.close)
        link = Link(*http_target(paced.url), Quality(round_trip=trip))
        stack.callback(link.close)
        self.max_tokens = held_out.max_tokens
        self.near = self._engine(url, UNPACED, None)
        self.far = self._engine(link.url, HALF_BILLION, link)

    def systems(self, shares: list[float], store: MeasuredStore) -> dict[str, Twice]:
        """By the names of their rows; making one may set a threshold first."""
        near, far = self.near.systems, self.far.systems
        found = {
            EDGE: Twice(near.edge, far.edge),
            "larger edge": Twice(
                lambda: near.larger_edge(self._model("mid"), UNPACED),
                lambda: far.larger_edge(self._model("mid"), HALF_BILLION.times(MID)),
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
        found[f"{MAIN}, waiting"] = self._pair(router, lambda: at, run_ahead=0)
        for name in UNTRAINED:
            found[f"{name} at 5%"] = self._pair(
                router_named(name), lambda name=name: self._threshold(name, store)
            )
        found["commit point"] = Twice(
            lambda: near.commit_point(0), lambda: far.commit_point(RUN_AHEAD)
        )
        for name, (pipelined, draft) in SPECULATION.items():
            found[name] = Twice(
                lambda p=pipelined, k=draft: self._speculative(UNPACED, p, k, paced=False),
                lambda p=pipelined, k=draft: self._speculative(HALF_BILLION, p, k, paced=True),
            )
        return found

    def _pair(
        self, router: Any, threshold: Callable[[], float], run_ahead: int = RUN_AHEAD
    ) -> Twice:
        # What is guessed meanwhile changes no answer.
        return Twice(
            lambda: self.near.systems.pair(router, threshold(), 0),
            lambda: self.far.systems.pair(router, threshold(), run_ahead),
        )

    def _threshold(self, name: str, store: MeasuredStore) -> float:
        def fresh() -> float:
            points = thresholds_for(
                [MAIN_SHARE],
                router_named(name),
                self._held_out,
                edge=self.edge,
                cloud=self.near.cloud,
            )
            return points[MAIN_SHARE].threshold

        return store.threshold(f"{name} at 5%", fresh)

    def _speculative(
        self, pace: Pace, pipelined: bool, draft: int, *, paced: bool
    ) -> MeasuredSystem:
        trip, first, read = self._trip, self.pace.first, self.pace.read

        def late(ids: int) -> float:
            return trip + first + read * ids if paced else 0.0

        verifier = LocalVerifier(self._model("cloud"), late)
        self._stack.callback(verifier.close)
        edge: Any = PacedEdge(self.edge, pace)
        made = Speculative(
            edge, verifier, draft=draft, pipelined=pipelined, max_tokens=self.max_tokens
        )
        return Repriced(made, self.pace.of)

    def _engine(self, url: str, pace: Pace, link: Link | None) -> _Engine:
        cloud = LlamaServer(url)
        self._stack.callback(cloud.close)
        cloud.check(self.edge.tokenizer)
        systems = PairSystems(
            self.edge, cloud, self.max_tokens, pace=pace, link=link, seconds=self.pace.of
        )
        self._stack.callback(systems.close)
        return _Engine(cloud, systems)

    def _model(self, name: Part) -> EdgeModel:
        return self._stack.enter_context(closing(LlamaModel(bundled(name), threads=1)))


class Repriced:
    """Implements `MeasuredSystem`: its engine's time told by a pace instead of its meter."""

    def __init__(self, system: MeasuredSystem, seconds: EngineTime) -> None:
        self._system, self._seconds = system, seconds

    def answer(self, question: Question) -> MeasuredAnswer:
        found = self._system.answer(question)
        requests = tuple(
            replace(one, engine_seconds=self._seconds(one.written, one.computed or 0))
            for one in found.requests
        )
        return replace(found, requests=requests)
