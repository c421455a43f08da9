"""What answers gain from a second core: `python -m benchmarks.side_by_side`.

The same questions of pocketqa are answered by one process with one thread and with two, by two
processes with one thread each, and, the edge alone, by one process that decodes several answers
together. Processes are started before the clock. Ways take turns; prints Markdown, with how many
answers came out otherwise than in the first way.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

from benchmarks.markdown import line
from edgewise import pair
from edgewise.edge.base import Chunk, EdgeModel, Sequences
from edgewise.routers.named import router_named
from edgewise.settings import Settings
from edgewise_lab.evaluation.systems import Decoded, edge_alone, paired, question_ids, text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

THRESHOLD = 0.3
"""Of the entropy: about 5 % of the bundled pair's tokens."""

Answers = list[str]
Way = Callable[[Sequence[Question]], Answers]


class Work(NamedTuple):
    """Models by their addresses; `cloud` "none" is the edge alone."""

    edge: str
    cloud: str
    threads: int
    tokens: int


class Reading(NamedTuple):
    """A question's place, the ids to be read next and the position of the first of them."""

    place: int
    ids: list[int]
    at: int


_system: list[Decoded] = []


def _open(work: Work) -> None:
    """In a process of its own: models that stay open as long as it lives."""
    models = pair.open_models(Settings(edge=work.edge, cloud=work.cloud, threads=work.threads))
    if models.cloud is None:
        _system.append(edge_alone(models.edge, work.tokens))
        return
    edge, cloud = models.both()
    decoder = paired(edge, router_named("entropy"), THRESHOLD, cloud)
    _system.append(Decoded(decoder, work.tokens))


def _answer(question: Question) -> str:
    return _system[0].answer(question).text


@contextmanager
def side_by_side(work: Work, processes: int) -> Iterator[Way]:
    """Whole answers in so many processes; each takes the next question that is left."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _open, (work,)) as pool:
        yield lambda questions: list(pool.map(_answer, questions))


@contextmanager
def together(work: Work, width: int) -> Iterator[Way]:
    """The edge alone, `width` answers in one decode, the next question where one has ended."""
    settings = Settings(edge=work.edge, cloud="none", threads=work.threads)
    with pair.open_models(settings) as models:
        yield lambda questions: _decoded(models.edge, questions, width, work.tokens)


def _decoded(edge: EdgeModel, questions: Sequence[Question], width: int, tokens: int) -> Answers:
    sequences = edge.sequences(width)
    if sequences is None:
        raise SystemExit(f"{edge.name!r} does not decode sequences together.")
    waiting = [(place, question_ids(edge.tokenizer, one)) for place, one in enumerate(questions)]
    waiting.reverse()
    written: list[list[int]] = [[] for _ in questions]
    running: dict[int, Reading] = {}
    while waiting or running:
        for free in set(range(sequences.width)) - running.keys():
            if waiting:
                sequences.forget(free, 0)
                running[free] = Reading(*waiting.pop(), 0)
        for sequence, token in _pass(sequences, running):
            found = written[running[sequence].place]
            found.append(token)
            if token in edge.tokenizer.eos_ids or len(found) == tokens:
                del running[sequence]
    sequences.close()
    return [text_of(edge.tokenizer, ids) for ids in written]


def _pass(sequences: Sequences, running: dict[int, Reading]) -> list[tuple[int, int]]:
    """One decode of what it has room for: the next token of every sequence that was read whole."""
    chunks: list[Chunk] = []
    room = sequences.room
    for sequence, (place, ids, at) in running.items():
        if taken := ids[:room]:
            chunks.append(Chunk(sequence, at, taken, len(taken) == len(ids)))
            running[sequence] = Reading(place, ids[len(taken) :], at + len(taken))
            room -= len(taken)
    asked = [chunk.sequence for chunk in chunks if chunk.output]
    found = [(one, step.proposed) for one, step in zip(asked, sequences.run(chunks), strict=True)]
    for sequence, token in found:
        running[sequence] = running[sequence]._replace(ids=[token])
    return found


def ways(work: Work, widths: Sequence[int], stack: ExitStack) -> dict[str, Way]:
    """By name, the first being what the others are compared with."""
    found: dict[str, Way] = {}
    for processes, threads in ((1, 1), (1, 2), (2, 1)):
        name = f"{processes} process{'es' * (processes > 1)}, {threads} thread{'s' * (threads > 1)}"
        alike = work._replace(threads=threads)
        found[name] = stack.enter_context(side_by_side(alike, processes))
    if work.cloud == "none":
        for width in widths:
            name = f"1 process, 1 thread, {width} together"
            found[name] = stack.enter_context(together(work._replace(threads=1), width))
    return found


def table(work: Work, options: argparse.Namespace) -> list[str]:
    """Answers a second of each way: the median of rounds, with the lowest and the highest."""
    questions = pocketqa().questions[: options.questions]
    rates: dict[str, list[float]] = {}
    texts: dict[str, Answers] = {}
    with ExitStack() as stack:
        opened = ways(work, options.together, stack)
        for number in range(options.rounds + 1):
            for name in list(opened)[:: 1 if number % 2 else -1]:
                begun = time.perf_counter()
                texts[name] = opened[name](questions)
                if number:  # the first round starts processes and warms caches
                    rate = len(questions) / (time.perf_counter() - begun)
                    rates.setdefault(name, []).append(rate)
    first = next(iter(opened))
    pair_of = f"{work.edge.split('/')[-1]}, cloud {work.cloud.split('/')[-1]}"
    lines = line([pair_of, "answers/s", "of the first", "other answers"], head=True)
    for name in opened:
        found = rates[name]
        other = sum(one != own for one, own in zip(texts[name], texts[first], strict=True))
        gains = [one / own for one, own in zip(found, rates[first], strict=True)]
        spread = f"{median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
        lines += line([name, f"{median(found):.1f}", spread, f"{other}"])
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    began = time.monotonic()
    for cloud in dict.fromkeys(("none", options.cloud)):
        work = Work(options.edge, cloud, 1, options.tokens)
        print("\n".join([*table(work, options), ""]), flush=True)
    print(f"{options.rounds} rounds of {options.questions} questions of pocketqa.")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.side_by_side", description=__doc__)
    parser.add_argument("--edge", default="bundled")
    parser.add_argument("--cloud", default="bundled", help="beside the edge alone; none: only that")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--together", type=int, nargs="*", default=[4, 16], help="answers a decode")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
