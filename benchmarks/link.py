"""What a consult's wait costs, with and without running ahead: `python -m benchmarks.link`.

The bundled pair with its router, the cloud model in a real llama-server behind a gateway, an
emulated link between device and gateway. The edge is slowed down to `--pace` a step, as a 0.5B
model is on this CPU, and the engine's answers to `--engine` a token. Edge alone, waiting and
running ahead answer the same questions in turn at each round-trip time. Time per token is
compared with the edge alone, and with what one guess can reach at best, 1 + p d (RTT + c) / t:
p is the share of tokens that were consulted for, d the fraction of consults that changed the
token. Prints Markdown.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import structlog
from rich.console import Console
from rich.progress import Progress

from benchmarks.pocket_routers import line
from edgewise.addresses import bundled
from edgewise.cloud.gateway import Gateway
from edgewise.cloud.link import Link, Quality
from edgewise.decoding import Answer, Decoder
from edgewise.edge.base import EdgeSession, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.base import Question
from edgewise.evaluation.tasks.grading import is_right
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.policy import Policy
from edgewise.registry import open_router
from edgewise.routers.base import Router
from edgewise.settings import Settings
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server

AHEAD = 16


class Paced:
    """An edge model whose decodes take at least `pace` seconds."""

    def __init__(self, model: LlamaModel, pace: float) -> None:
        self._model, self._pace = model, pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "PacedSession":
        return PacedSession(self._model.session(needs, top=top), self._pace)


class PacedSession:
    """Its `step` is slow, everything else as it is."""

    def __init__(self, session: EdgeSession, pace: float) -> None:
        self._session, self._pace = session, pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def step(self) -> Any:
        begun = time.perf_counter()
        step = self._session.step()
        time.sleep(max(0.0, self._pace - (time.perf_counter() - begun)))
        return step


class Way:
    """One system's answers, and what they took."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.answers: list[Answer] = []
        self.right = 0

    def ask(self, question: Question) -> None:
        ids = question_ids(self.decoder.edge.tokenizer, question)
        answer = self.decoder.generate(ids, max_tokens=96)
        self.answers.append(answer)
        self.right += is_right(question, answer.text)

    @property
    def token_seconds(self) -> float:
        """Median over the answers of the time per token, prefill and all."""
        return median(a.timing.total / len(a.tokens) for a in self.answers)

    def total(self, name: str) -> int:
        return sum(getattr(answer.usage, name) for answer in self.answers)

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)


def row(trip: float, share: float, ways: dict[str, Way], engine: float) -> list[str]:
    edge, waiting, ahead = (ways[name].token_seconds for name in ("edge", "waiting", "ahead"))
    plain = ways["waiting"]
    calls = plain.total("cloud_calls")
    p, d = calls / plain.tokens, plain.total("changing_tokens") / max(1, calls)
    bound = 1 + p * d * (trip + engine) / edge
    dropped = ways["ahead"].total("wasted_tokens")
    accuracy = [f"{way.right / len(way.answers):.0%}" for way in ways.values()]
    return line(
        [
            f"{1000 * trip:.0f}",
            f"{share:.0%}",
            f"{p:.1%}",
            f"{d:.0%}",
            f"{1000 * edge:.1f}",
            f"{waiting / edge:.2f}",
            f"{ahead / edge:.2f}",
            f"{bound:.2f}",
            f"{dropped / ways['ahead'].tokens:.1%}",
            " / ".join(accuracy),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.05,))
    parser.add_argument("--trips", type=float, nargs="+", default=(0.0, 0.05, 0.1, 0.2))
    parser.add_argument("--pace", type=float, default=0.034, help="seconds a step of the edge")
    parser.add_argument("--engine", type=float, default=0.025, help="seconds added to a consult")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    head = ["RTT, ms", "asked", "p", "d", "edge alone, ms a token", "waiting / edge"]
    head += ["ahead / edge", "bound", "dropped", "right: edge / waiting / ahead"]
    lines = line(head, head=True)
    with ExitStack() as stack:
        model = LlamaModel(bundled("edge"), threads=1)
        stack.callback(model.close)
        router, card = open_router(Settings(), model)
        assert card is not None
        url = stack.enter_context(llama_server(bundled("cloud")))
        running = stack.enter_context(gateway([url]))
        edge: Any = Paced(model, options.pace)
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        rows = [(trip, share) for share in options.shares for trip in options.trips]
        bar = progress.add_task("answers", total=len(rows) * options.questions)
        bench = Bench(edge, router, running.url, options)
        for trip, share in rows:
            threshold = card.threshold(share)
            assert threshold is not None
            ways = measured(bench, trip, threshold, lambda: progress.advance(bar))
            lines += row(trip, share, ways, options.engine)
    print("\n".join(lines))
    print(f"\n{options.questions} questions a row, the three systems in turn; edge paced to")
    print(f"{1000 * options.pace:.0f} ms a step, consults to {1000 * options.engine:.0f} ms.")


class Bench(NamedTuple):
    """What every row has in common."""

    edge: Any
    router: Router
    url: str
    options: argparse.Namespace


def measured(
    bench: Bench, trip: float, threshold: float, done: Callable[[], None]
) -> dict[str, Way]:
    """The three systems' answers at a round-trip time."""
    quality = Quality(round_trip=trip + bench.options.engine)
    # The engine's time is put on the link, where it delays a consult as much.
    link = Link("127.0.0.1", int(bench.url.rpartition(":")[2]), quality)
    cloud = Gateway(link.url)
    cloud.check(bench.edge.tokenizer)
    policies = {
        "edge": Policy(cloud_share=0.0),
        "waiting": Policy(threshold=threshold),
        "ahead": Policy(threshold=threshold, run_ahead=AHEAD),
    }
    ways = {
        name: Way(Decoder(bench.edge, router=bench.router, policy=policy, cloud=cloud))
        for name, policy in policies.items()
    }
    questions: Sequence[Question] = pocketqa().questions[: bench.options.questions]
    for question in questions:
        for way in ways.values():
            way.ask(question)
        done()
    cloud.close()
    link.close()
    return ways


if __name__ == "__main__":
    main()
