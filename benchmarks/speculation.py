"""Lossless speculative decoding on the bundled pair: `python -m benchmarks.speculation`.

How often the edge writes what the cloud would have written, given the cloud's answer so far
(acceptance); what that comes to for every draft length and round trip (computed, by replaying the
agreement of every question); and real runs with the edge at the pace of a model of half a billion
parameters and the cloud in this process, its replies as late as a link and an engine make them.
With `--vllm URL` (the bundled cloud model in float32, see `make test-vllm`) vLLM verifies, behind
an emulated link, in both forms that it has.

Markdown. As published: `--questions 400 --paced 100 --workers 4`.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.markdown import line
from edgewise.addresses import bundled
from edgewise.edge.base import EdgeModel
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp import LlamaModel
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.frontier.speculation_time import computed_time, expected
from edgewise_lab.bench.frontier.speculative import Speculated, Speculative
from edgewise_lab.bench.frontier.verifier_vllm import Form, VllmVerifier
from edgewise_lab.bench.frontier.verifiers import LocalVerifier, VerifierSession
from edgewise_lab.bench.link import http_target
from edgewise_lab.bench.pace import HALF_BILLION, PacedEdge
from edgewise_lab.evaluation.statistics import mean_interval, ratio_interval
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import MAX_TOKENS, pocketqa

DRAFTS = (1, 2, 4, 8, 16)
SWEPT = (2, 4, 8, 16)
TRIPS = (20, 50, 100, 200)
STEP, PAIR = HALF_BILLION.of(1), HALF_BILLION.of(2)
FORMS: tuple[Form, ...] = ("prompts", "prompt_logprobs")


class Agreed(NamedTuple):
    """A question's prompt, the cloud's own answer, and where the edge would have written it."""

    question: Question
    prompt: list[int]
    ids: list[int]
    matches: list[bool]


class Cell(NamedTuple):
    """A way to speculate, over a round trip in milliseconds."""

    trip: int
    draft: int
    pipelined: bool


class Run(NamedTuple):
    """One answer, timed, beside what the cloud alone wrote."""

    cell: Cell
    seconds: float
    ttft: float
    gap: float
    tokens: int
    computed: float
    same: bool
    margin: float
    """The cloud's where the answers part; infinite where they do not."""

    found: Speculated


def alone(cloud: EdgeModel, prompt: Sequence[int]) -> list[int]:
    """The cloud's greedy answer, a pass a token."""
    session, written = cloud.session(), list[int]()
    try:
        session.open(prompt)
        while len(written) < MAX_TOKENS:
            written.append(session.step().proposed)
            if written[-1] in cloud.tokenizer.eos_ids:
                break
            session.extend(written[-1:])
    finally:
        session.close()
    return written


def agreed(edge: EdgeModel, cloud: EdgeModel, question: Question) -> Agreed:
    """The edge's choices along the cloud's answer."""
    prompt = question_ids(edge.tokenizer, question)
    ids = alone(cloud, prompt)
    session = edge.session()
    try:
        session.open(prompt[:-1])
        steps = session.steps([prompt[-1], *ids[:-1]])
        matches = [step.proposed == token for step, token in zip(steps, ids, strict=True)]
    finally:
        session.close()
    return Agreed(question, prompt, ids, matches)


def replayed(one: Agreed, cell: Cell, engine: float) -> float:
    """Seconds that an answer takes, computed."""
    return computed_time(
        one.matches,
        draft=cell.draft,
        pipelined=cell.pipelined,
        edge_step=STEP,
        round_trip=cell.trip / 1000,
        verify=engine,
        edge_prompt=HALF_BILLION.of(len(one.prompt)),
        edge_pair=PAIR,
    )


def share(part: Sequence[float], whole: Sequence[float]) -> str:
    """A ratio in percent with its interval."""
    low, high = ratio_interval(part, whole)
    return f"{100 * sum(part) / sum(whole):.1f} ({100 * low:.1f} to {100 * high:.1f})"


def show_acceptance(found: Sequence[Agreed]) -> None:
    """Of the cloud's tokens, how many the edge would have written; by family."""
    print("\n".join(line(["family", "questions", "tokens", "accepted, %"], head=True)))
    families = list(dict.fromkeys(one.question.family for one in found))
    for family in [*families, "all"]:
        some = [one for one in found if family in ("all", one.question.family)]
        sums, sizes = [float(sum(o.matches)) for o in some], [float(len(o.ids)) for o in some]
        cells = [family, str(len(some)), f"{sum(sizes):.0f}", share(sums, sizes)]
        print("\n".join(line(cells)))
    same = [all(one.matches) for one in found]
    low, high = (100 * end for end in mean_interval(same))
    print(f"\nWhole answers alike: {100 * sum(same) / len(same):.0f}% ({low:.0f} to {high:.0f}).\n")


def show_computed(found: Sequence[Agreed], engine: float) -> dict[tuple[int, bool], int]:
    """Milliseconds a token of every cell; returns the best draft for each trip and way."""
    acceptance = sum(sum(one.matches) for one in found) / sum(len(one.ids) for one in found)
    best: dict[tuple[int, bool], int] = {}
    head = ["round trip, ms", "way", *(f"draft {draft}" for draft in DRAFTS), "best"]
    print("\n".join(line(head, head=True)))
    for trip in TRIPS:
        for pipelined in (False, True):
            cells, times = [str(trip), "pipelined" if pipelined else "plain"], dict[int, float]()
            for draft in DRAFTS:
                cell = Cell(trip, draft, pipelined)
                seconds = [replayed(one, cell, engine) for one in found]
                times[draft] = sum(seconds) / sum(len(one.ids) for one in found)
                told = expected(
                    *(acceptance, draft, STEP, trip / 1000, engine),
                    pipelined=pipelined,
                    edge_pair=PAIR,
                )
                cells.append(f"{1000 * times[draft]:.0f} ({1000 * told:.0f})")
            best[trip, pipelined] = min(SWEPT, key=lambda draft: times[draft])
            print("\n".join(line([*cells, str(min(times, key=lambda draft: times[draft]))])))
    print("\nComputed ms a token, prompt included; in brackets by the closed form, without it.\n")
    return best


class _Worker:
    """What a process keeps: both models, and the engine's seconds."""

    edge: PacedEdge
    cloud: LlamaModel
    engine: float


def _begin(engine: float) -> None:
    _Worker.edge = PacedEdge(LlamaModel(bundled("edge"), threads=1), HALF_BILLION)
    _Worker.cloud = LlamaModel(bundled("cloud"), threads=1, slots=2)
    _Worker.engine = engine


def _agreed(question: Question) -> Agreed:
    return agreed(_Worker.edge, _Worker.cloud, question)


def _step_taken(one: Agreed) -> float:
    """Seconds of an edge's step along an answer: a machine that is busy adds to them."""
    session = _Worker.edge.session()
    try:
        session.open(one.prompt)
        session.step()
        begun = time.monotonic()
        for token in one.ids[:-1]:
            session.extend([token])
            session.step()
        return (time.monotonic() - begun) / max(1, len(one.ids) - 1)
    finally:
        session.close()


def _timed(cell: Cell, one: Agreed) -> Run:
    late = cell.trip / 1000 + _Worker.engine
    with closing(LocalVerifier(_Worker.cloud, lambda _: late)) as verifier:
        return timed(_Worker.edge, verifier, cell, one, _Worker.engine)


def timed(
    edge: PacedEdge, verifier: LocalVerifier | VllmVerifier, cell: Cell, one: Agreed, engine: float
) -> Run:
    """One answer."""
    system = Speculative(
        edge, verifier, draft=cell.draft, pipelined=cell.pipelined, max_tokens=MAX_TOKENS
    )
    found = system.ask(one.prompt)
    parted = common_prefix(found.ids, one.ids)
    same = list(found.ids) == one.ids
    return Run(
        cell=cell,
        seconds=found.shown[-1],
        ttft=found.shown[0],
        gap=float(np.diff(found.shown).max(initial=0.0)),
        tokens=len(found.ids),
        computed=replayed(one, cell, engine),
        same=same,
        margin=float("inf") if same else found.margins[min(parted, len(found.margins) - 1)],
        found=found,
    )


HEAD = (
    *("round trip, ms", "way", "draft", "answers", "ms a token", "computed", "off"),
    *("p50, s", "p95, s", "first, ms", "gap, ms", "requests", "prompt ids", "seen, %"),
    *("edge passes", "drafted", "accepted", "not the cloud's own (margin)"),
)


def show_runs(runs: Sequence[Run], cells: Iterable[Cell], *, computed: bool = True) -> None:
    """A row a cell, all but times per answer; times p50."""
    print("\n".join(line(HEAD, head=True)))
    for cell in cells:
        some = [run for run in runs if run.cell == cell]
        tokens, n = sum(run.tokens for run in some), len(some)
        pace = sum(run.seconds for run in some) / tokens
        told = sum(run.computed for run in some) / tokens
        requests = [request for run in some for request in run.found.requests]
        prompts = sum(request.prompt for request in requests)
        parted = [run.margin for run in some if not run.same]
        ends = np.quantile([run.seconds for run in some], (0.5, 0.95))
        shown = [str(cell.trip), "pipelined" if cell.pipelined else "plain", str(cell.draft)]
        shown += [str(n), f"{1000 * pace:.0f}"]
        shown += [f"{1000 * told:.0f}", f"{pace / told - 1:+.0%}"] if computed else ["", ""]
        shown += [f"{end:.2f}" for end in ends]
        shown += [f"{1000 * median(run.ttft for run in some):.0f}"]
        shown += [f"{1000 * median(run.gap for run in some):.0f}"]
        shown += [f"{len(requests) / n:.1f}", f"{prompts / n:.0f}"]
        shown += [f"{100 * sum(request.seen for request in requests) / prompts:.0f}"]
        shown += [f"{sum(run.found.decodes for run in some) / n:.1f}"]
        shown += [f"{sum(run.found.drafted for run in some) / n:.1f}"]
        shown += [f"{sum(run.found.accepted for run in some) / n:.1f}"]
        shown += [f"{len(parted)} ({max(parted):.3f})" if parted else "0"]
        print("\n".join(line(shown)))
    print(flush=True)


def vllm_requests(session: VerifierSession, prompt: int, draft: int, repeats: int) -> list[float]:
    """Seconds of verifications behind an answer that grows by a draft each time."""
    rng = np.random.default_rng(prompt + draft)
    ids = [int(i) for i in rng.integers(10, 300, prompt)]
    taken: list[float] = []
    for _ in range(repeats + 1):
        drafted = [int(i) for i in rng.integers(10, 300, draft)]
        begun = time.monotonic()
        session.verify(ids, drafted).result()
        taken.append(time.monotonic() - begun)
        ids += drafted
    # The first one fills the cache.
    return taken[1:]


def show_vllm_requests(url: str, repeats: int) -> None:
    """What a verification takes in both forms, by the prompt's length."""
    head = ["prompt, ids", "draft", *(f"{form}, ms" for form in FORMS)]
    print("\n".join(line(head, head=True)))
    for prompt in (50, 150, 300):
        for draft in (4, 8):
            cells = [str(prompt), str(draft)]
            for form in FORMS:
                with closing(VllmVerifier(url, form=form)) as verifier:
                    taken = vllm_requests(verifier.open(), prompt, draft, repeats)
                cells.append(f"{1000 * median(taken):.0f}")
            print("\n".join(line(cells)))
    print(flush=True)


def show_vllm(url: str, found: Sequence[Agreed], draft: int) -> None:
    """Answers with vLLM as verifier, behind a link of 50 ms."""
    link = Link(*http_target(url), Quality(round_trip=0.05))
    try:
        with LlamaModel(bundled("edge"), threads=1) as model:
            edge = PacedEdge(model, HALF_BILLION)
            for form in FORMS:
                cells = [Cell(50, draft, pipelined) for pipelined in (False, True)]
                with closing(VllmVerifier(link.url, form=form, link=link)) as verifier:
                    runs = [timed(edge, verifier, cell, one, 0) for one in found for cell in cells]
                traffic = [run.found.traffic or (0, 0) for run in runs]
                up, down = (sum(way) / 1000 / len(runs) for way in zip(*traffic, strict=True))
                print(f"By {form}; {up:.1f} kB up and {down:.1f} kB down an answer:\n")
                show_runs(runs, cells, computed=False)
    finally:
        link.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=200, help="for acceptance")
    parser.add_argument("--paced", type=int, default=20, help="questions of a paced cell")
    parser.add_argument("--swept", type=int, default=5, help="... of each draft length")
    parser.add_argument("--engine", type=float, default=35.0, help="ms of a verification")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--vllm", help="the address of a vLLM with the bundled cloud model")
    parser.add_argument("--vllm-questions", type=int, default=10)
    options = parser.parse_args()
    engine = options.engine / 1000
    questions = pocketqa().first(max(options.questions, options.paced, options.swept)).questions
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, _begin, (engine,)) as pool:
        found = list(pool.map(_agreed, questions, chunksize=8))
        show_acceptance(found)
        best = show_computed(found, engine)
        taken = median(pool.map(_step_taken, found[: 4 * options.workers]))
        print(f"A step of the edge took {1000 * taken:.1f} ms here, {1000 * STEP:.0f} were told.\n")
        swept = [Cell(t, d, way) for t in (50, 100) for way in (False, True) for d in SWEPT]
        chosen = [Cell(trip, draft, way) for (trip, way), draft in best.items()]
        for cells, limit in ((swept, options.swept), (chosen, options.paced)):
            # Question by question, so that a noisy minute is every cell's.
            work = [(cell, one) for one in found[:limit] for cell in cells]
            print(f"{len(work)} answers", file=sys.stderr)
            runs = list(pool.map(_timed, *zip(*work, strict=True)))
            show_runs(runs, cells)
    if options.vllm:
        show_vllm_requests(options.vllm, 5)
        show_vllm(options.vllm, found[: options.vllm_questions], best[50, False])


if __name__ == "__main__":
    main()
