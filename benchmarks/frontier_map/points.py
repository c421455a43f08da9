"""Points of the map, measured: a paced edge, an emulated link, a paced engine."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import numpy as np

from benchmarks.frontier_map.inputs import ALONE, PARTS, Engine, asked_of, scaled, timed_engine
from benchmarks.frontier_map.predicted import LARGER, Drafting
from edgewise import parts
from edgewise.addresses import bundled
from edgewise.bench.frontier.speculative import Speculative
from edgewise.bench.frontier.streamed import Streamed
from edgewise.bench.frontier.verifiers import LocalVerifier
from edgewise.bench.link import http_target
from edgewise.bench.pace import PacedEdge
from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.statistics import RESAMPLES
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.base import Question, Task
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.gateway.process import gateway_process
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.routers.constant import Constant
from edgewise.settings import Settings
from edgewise.testing.link import Link, Quality
from edgewise.testing.paced_engine import EnginePace, PacedEngine
from tests.llama_server_process import llama_server

WARM = 3
"""Questions before the clock starts: connections are made, and the loop learns the latency."""

BLOCK, ALONE_A_BLOCK = 10, 2
"""Questions that a way answers in a turn, and that the edge alone does in between."""

Ask = Callable[[Question], tuple[float, int]]
"""Answers a question; its seconds and tokens."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured where."""

    step: float
    round_trip: float
    threshold: float
    questions: int
    draft: int
    pipelined: bool
    pace: tuple[float, float, float]
    sample: int = 8
    run_ahead: int = 16

    @property
    def drafting(self) -> Drafting:
        return Drafting(self.draft, self.pipelined)


class Timed(msgspec.Struct, frozen=True):
    """One way's answers: seconds and tokens of each; `opened` connections, `calls` of the cloud."""

    seconds: list[float]
    tokens: list[int]
    opened: int

    @property
    def per_token(self) -> float:
        return sum(self.seconds) / sum(self.tokens)

    @property
    def interval(self) -> tuple[float, float]:
        """95%, questions resampled."""
        n = len(self.seconds)
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
        ratios = (drawn @ np.array(self.seconds)) / (drawn @ np.array(self.tokens))
        low, high = np.quantile(ratios, (0.025, 0.975))
        return float(low), float(high)


class Checked(msgspec.Struct, frozen=True):
    """Every way's answers to the same questions, and what the formulas need of this very run.

    A pass of the edge took `slower` seconds more than its pace, `engine` is without the link.
    """

    ways: dict[str, Timed]
    slower: float
    engine: Engine


def measured_point(point: Point) -> Checked:
    """For a process of its own. The ways take turns, so that a busy machine is so for all."""
    task = pocketqa()
    asked = task.questions[: point.questions]
    warm = task.questions[point.questions : point.questions + WARM]
    with ExitStack() as stack:
        server = stack.enter_context(llama_server(bundled("cloud")))
        engine = stack.enter_context(closing(PacedEngine(server, EnginePace(*point.pace))))
        gateway = stack.enter_context(gateway_process(engine.url))
        models = {
            part: stack.enter_context(closing(LlamaModel(bundled(part), threads=1)))
            for part in PARTS
        }
        told = timed_engine(
            models["edge"], task.first(point.sample), point.threshold, server, engine.pace
        )
        runs: dict[str, _Run] = {}
        for name, way in _ways(point, models, task.max_tokens).items():
            # A gateway's connection stays, whatever is cancelled on it.
            target = gateway if name == "ahead" else engine.url
            link = Link(*http_target(target), Quality(round_trip=point.round_trip))
            stack.callback(link.close)
            runs[name] = _Run(way(link, stack), link)
            for question in warm:
                runs[name].ask(question)
        alone = _Alone(models["edge"], point)
        for start in range(0, len(asked), BLOCK):
            for run in runs.values():
                # The connection may have been idle for long.
                run.ask(warm[0])
                run.block(asked[start : start + BLOCK])
            alone.block(asked[start : start + ALONE_A_BLOCK])
    return Checked({name: run.timed() for name, run in runs.items()}, alone.slower, told)


class _Run:
    """One way's answers so far."""

    def __init__(self, ask: Ask, link: Link) -> None:
        self.ask, self._link = ask, link
        self._timed: list[tuple[float, int]] = []
        self._opened = 0

    def block(self, questions: Sequence[Question]) -> None:
        before = self._link.connections
        self._timed += [self.ask(question) for question in questions]
        self._opened += self._link.connections - before

    def timed(self) -> Timed:
        seconds, tokens = zip(*self._timed, strict=True)
        return Timed(list(seconds), list(tokens), self._opened)


class _Alone:
    """The edge alone: by how much its passes miss their pace here, loop and router with it."""

    def __init__(self, model: LlamaModel, point: Point) -> None:
        self._pace, self._most = scaled(point.step), pocketqa().max_tokens
        edge: Any = PacedEdge(model, self._pace)
        router, _ = parts.open_router(Settings(), model)
        self._edge, self._decoder = edge, Decoder(edge, router=router, policy=ALONE)
        self._late = 0.0

    def block(self, questions: Sequence[Question]) -> None:
        for answer in asked_of(self._decoder, Task("alone", tuple(questions), self._most)):
            prompt, further = answer.usage.prompt_tokens, len(answer.tokens) - 1
            self._late += answer.timing.total - self._pace.of(prompt) - further * self._pace.of(1)

    @property
    def slower(self) -> float:
        """Seconds a pass."""
        return max(0.0, self._late) / max(1, self._edge.decodes)


def _ways(
    point: Point, models: dict[str, LlamaModel], most: int
) -> dict[str, Callable[[Link, ExitStack], Ask]]:
    """How each is set up over its own link."""

    def cloud(link: Link, stack: ExitStack) -> Ask:
        system = Streamed(link.url, models["edge"].tokenizer, most)
        stack.callback(system.close)
        return _of_system(system)

    def speculation(link: Link, stack: ExitStack) -> Ask:
        pace = EnginePace(*point.pace)

        def late(computed: int) -> float:
            return point.round_trip + pace.of(1, computed)

        verifier = LocalVerifier(models["cloud"], late)
        stack.callback(verifier.close)
        edge: Any = PacedEdge(models["edge"], scaled(point.step))
        drafting = point.drafting
        return _of_system(
            Speculative(
                edge,
                verifier,
                draft=drafting.draft,
                pipelined=drafting.pipelined,
                max_tokens=most,
            )
        )

    def larger(link: Link, stack: ExitStack) -> Ask:
        edge: Any = PacedEdge(models["mid"], scaled(point.step, LARGER))
        return _of_decoder(Decoder(edge, router=Constant(0.0), policy=ALONE), most)

    def ahead(link: Link, stack: ExitStack) -> Ask:
        cloud = GatewayCloud(link.url)
        stack.callback(cloud.close)
        cloud.check(models["edge"].tokenizer)
        edge: Any = PacedEdge(models["edge"], scaled(point.step))
        router, _ = parts.open_router(Settings(), models["edge"])
        policy = Policy(
            threshold=point.threshold,
            run_ahead=point.run_ahead,
            deadline=LONGEST_DEADLINE,
            on_cloud_error="raise",
        )
        return _of_decoder(Decoder(edge, router=router, policy=policy, cloud=cloud), most)

    return {"cloud": cloud, "speculation": speculation, "larger edge": larger, "ahead": ahead}


def _of_system(system: Any) -> Ask:
    def ask(question: Question) -> tuple[float, int]:
        outcome = system.answer(question).outcome
        return outcome.seconds, outcome.output_tokens

    return ask


def _of_decoder(decoder: Decoder, most: int) -> Ask:
    def ask(question: Question) -> tuple[float, int]:
        ids = question_ids(decoder.edge.tokenizer, question)
        answer = decoder.generate(ids, max_tokens=most)
        return answer.timing.total, len(answer.tokens)

    return ask
