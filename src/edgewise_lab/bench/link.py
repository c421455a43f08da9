"""Cost of a network link between edge and cloud, by three systems over an emulated link.

The systems are the edge model alone, a pair that waits for each consult, and a pair whose edge
model writes draft tokens meanwhile (speculates). Times per token leave out the prefill of the
prompt and are divided by t, that of the edge alone. They are compared with 1 + p d (RTT + c) / t: a
pair that waits only for consults that change its token. p is the number of consults per token, d
the fraction of them that change the token, c the emulated engine time per consult, in seconds.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from statistics import fmean
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import httpx2
import msgspec
import numpy as np

from edgewise.advice import Advice, CloudPace, MeasuredConditions, advise
from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.base import Router
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.pace import Pace, PacedEdge
from edgewise_lab.evaluation.statistics import RESAMPLES
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import is_right

SYSTEMS = ("edge", "waiting", "speculating")

Connect = Callable[[str], CloudModel]
"""Function that opens the cloud model at a URL and checks it."""


class Figure(msgspec.Struct, frozen=True):
    """A ratio, with the ends of its 95% interval (paired bootstrap over the questions)."""

    value: float
    low: float
    high: float


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """Results for one link and one target cloud share; times are in seconds.

    `cloud_share` is the part of all tokens that the cloud is to write, `loss` the fraction of
    packets lost. `consults` is the waiting pair's number of consults per token (p), `changed` the
    fraction of these that changed the token (d). `step` is the time per token of the edge alone;
    `waiting`, `speculating` and `bound`, 1 + p d (round trip + engine time) / step, are times per
    token divided by it. `decodes_per_token` is the edge's forward passes per token in the
    speculating pair. `failed_calls` counts both pairs' failed consults, `identical` the questions
    with the same ids by both. `right`: fractions of right answers of edge alone, waiting pair,
    speculating pair.
    """

    round_trip: float
    loss: float
    cloud_share: float
    questions: int
    consults: float
    changed: float
    step: float
    waiting: Figure
    speculating: Figure
    bound: float
    decodes_per_token: float
    failed_calls: int
    identical: int
    right: tuple[float, float, float]


class Way:
    """One of the compared systems, with its `answers` so far, and whether each is `right`."""

    def __init__(self, decoder: Decoder, edge: PacedEdge) -> None:
        self.answers: list[Answer] = []
        self.right: list[bool] = []
        self._decoder, self.edge = decoder, edge

    def ask(self, question: Question, max_tokens: int) -> None:
        ids = question_ids(self._decoder.edge.tokenizer, question)
        answer = self._decoder.generate(ids, max_tokens=max_tokens)
        self.answers.append(answer)
        self.right.append(is_right(question, answer.text))

    def total(self, name: str) -> int:
        """Return the sum of the field `name` of `Usage` (an answer's counts) over all answers."""
        return sum(getattr(answer.usage, name) for answer in self.answers)

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)


class Conditions(NamedTuple):
    """Conditions that a `LinkRow` is measured under; times in seconds.

    `round_trip` and `loss` (fraction of packets) are the link's. The router's `threshold` was set
    for `share`, the part of all tokens that the cloud is to write. `engine` is added to the cloud
    engine's own time for each consult; `speculate` is the most draft tokens during a consult.
    """

    round_trip: float
    share: float
    threshold: float
    loss: float = 0.0
    engine: float = 0.025
    speculate: int = 16


class LinkBench:
    """Measures a pair over emulated links: a slowed edge model, a router, and a cloud at a URL."""

    def __init__(
        self, edge: EdgeModel, router: Router, url: str, connect: Connect, *, pace: Pace, task: Task
    ) -> None:
        """`connect` opens the cloud by a link to `url`, http://host:port (else `UsageError`)."""
        self._edge, self._router = edge, router
        self._target = http_target(url)
        self._connect, self._pace, self._task = connect, pace, task

    def row(self, conditions: Conditions, done: Callable[[], None] = lambda: None) -> LinkRow:
        """Return what is measured under `conditions`. `done` is called after each answer."""
        policies = {
            "edge": Policy(cloud_share=0.0),
            "waiting": Policy(threshold=conditions.threshold),
            "speculating": Policy(threshold=conditions.threshold, speculate=conditions.speculate),
        }
        # The link also emulates the engine's time: to a consult both are a delay.
        trip = conditions.round_trip + conditions.engine
        quality = Quality(round_trip=trip, loss=conditions.loss)
        ways: dict[str, Way] = {}
        with (
            closing(Link(*self._target, quality)) as link,
            closing(self._connect(link.url)) as cloud,
        ):
            for name, policy in policies.items():
                edge: Any = PacedEdge(self._edge, self._pace)
                decoder = Decoder(edge, router=self._router, policy=policy, cloud=cloud)
                ways[name] = Way(decoder, edge)
            for number, question in enumerate(self._task.questions):
                # Each system goes first in turn.
                for name in np.roll(list(ways), number):
                    ways[name].ask(question, self._task.max_tokens)
                    done()
        return _row(conditions, ways)


def http_target(url: str) -> tuple[str, int]:
    """Return host and port of a plain HTTP URL without a path; other URLs raise `UsageError`."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise UsageError(
            f"The emulated link forwards plain HTTP to a host and port, not {url!r}",
            hint="name an http://host:port without TLS",
        )
    return parts.hostname, parts.port or 80


def _row(conditions: Conditions, ways: dict[str, Way]) -> LinkRow:
    edge, waiting, speculating = (ways[name] for name in SYSTEMS)
    answers = zip(waiting.answers, speculating.answers, strict=True)
    consults = waiting.total("cloud_calls")
    p = consults / waiting.tokens
    d = waiting.total("correction_tokens") / max(1, consults)
    trip, step = conditions.round_trip + conditions.engine, step_of(edge)
    return LinkRow(
        round_trip=conditions.round_trip,
        loss=conditions.loss,
        cloud_share=conditions.share,
        questions=len(edge.answers),
        consults=p,
        changed=d,
        step=step,
        waiting=time_over(waiting, edge, edge),
        speculating=time_over(speculating, edge, edge),
        bound=1 + p * d * trip / step,
        decodes_per_token=speculating.edge.decodes / speculating.tokens,
        failed_calls=speculating.total("failed_calls") + waiting.total("failed_calls"),
        identical=sum(_ids(one) == _ids(other) for one, other in answers),
        right=(fmean(edge.right), fmean(waiting.right), fmean(speculating.right)),
    )


def _ids(answer: Answer) -> list[int]:
    return [token.id for token in answer.tokens]


def step_of(edge: Way) -> float:
    """Return the mean seconds per token of the edge alone, after the first token of each answer."""
    seconds, tokens = _spent(edge, edge)
    return float(seconds.sum() / max(1.0, tokens.sum()))


def time_over(one: Way, other: Way, edge: Way) -> Figure:
    """Return the time per token of `one` divided by that of `other`, with its 95% interval.

    An answer counts without its first token, its time without the TTFT of `edge`, the edge alone.
    """
    (above, above_tokens), (below, below_tokens) = _spent(one, edge), _spent(other, edge)
    n = len(above)
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)

    def over(w: Any) -> Any:
        return (w @ above / (w @ above_tokens)) / (w @ below / (w @ below_tokens))

    low, high = np.quantile(over(weights), (0.025, 0.975))
    return Figure(float(over(np.ones(n))), float(low), float(high))


def _spent(way: Way, edge: Way) -> tuple[Any, Any]:
    read = np.array([answer.timing.ttft for answer in edge.answers])
    seconds = np.array([answer.timing.total for answer in way.answers])
    tokens = np.array([len(answer.tokens) - 1 for answer in way.answers], np.float64)
    return np.maximum(seconds - read, 0.0), tokens


def advice_over(row: LinkRow, cloud: CloudPace, engine: float) -> Advice:
    """Return advice on whether edge alone, cloud alone or the pair is best in a row's conditions.

    `cloud` was timed without the link. `engine` is added to its seconds for a consult and for each
    further token, to emulate a slower engine. So the cloud alone is computed, not measured.
    """
    at = MeasuredConditions(
        step=row.step,
        round_trip=row.round_trip,
        consult=cloud.consult + engine,
        cloud_token=None if cloud.token is None else cloud.token + engine,
        asked=row.consults,
        changed=row.changed,
    )
    slower = f", the cloud {1000 * engine:.3g} ms a token slower than it is" if engine else ""
    place = f"over a round trip of {1000 * row.round_trip:.3g} ms{slower}"
    return advise(at, routing=row.step * row.speculating.value, place=place)


START_SECONDS = 60


@contextmanager
def gateway_process() -> Generator[str]:
    """Run a gateway for the bundled cloud; yield its URL. `CloudUnavailable` if it cannot start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    gateway = ["-m", "edgewise", "gateway", "--engine", "bundled", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    # A file and not a pipe, which would stop the gateway when nobody reads it.
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, *gateway], stdout=subprocess.DEVNULL, stderr=stderr
        )
        try:
            _wait(url, process, stderr)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", stderr: BinaryIO) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            stderr.seek(0)
            lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1].removeprefix("edgewise: ") if lines else "it said nothing"
            raise CloudUnavailable(f"The gateway did not start: {reason}")
        try:
            if httpx2.get(f"{url}/health", timeout=1, trust_env=False).is_success:
                return
        except httpx2.TransportError:
            time.sleep(0.05)
    raise CloudUnavailable(f"The gateway did not start within {START_SECONDS} s.")
