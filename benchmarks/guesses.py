"""What better guesses beside a consult would gain: `python -m benchmarks.guesses`.

The bundled pair answers test questions, waiting for each consult; of every consult is recorded what
the edge would have written, which of its candidates the completion was, and what the edge would
have gone on with behind its own token. On these records the time per token of each way to guess is
computed, over the edge alone, for several round trips and two paces by batch. Prints Markdown: what
the completions were, then the ways, the bound of one guess beside them.
"""

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.markdown import line
from benchmarks.redrafts import Redrafts
from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeSession, Floats, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Token
from edgewise.loop.consults import FLIGHTS
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.parts import open_router
from edgewise.routers.base import Router
from edgewise.routers.uncertainty import Entropy
from edgewise.settings import Settings
from edgewise_lab.bench.pace import PACES, Pace
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

LONGEST, WRONG = 16, 8
"""Guesses ahead of a consult, and those recorded behind a token that the cloud changed."""

ENGINE = 0.025
"""Seconds that the cloud takes for a consult."""

FIRST_TRAINED = 0.5
"""Part of the questions that the foresight is fitted on; the ways are computed on the others."""

RECALL = 0.4
"""Of the consults, those that are to be foreseen."""


class Place(NamedTuple):
    """A position of an answer. `rank` of the completion among the edge's candidates, None where no
    consult was made; `matches`: how many tokens of the answer behind a changed one are those that
    the edge would have written behind its own; `wrong` of them were recorded. `hidden` float32[d].
    """

    rank: int | None
    matches: int
    wrong: int
    margin: float
    score: float
    hidden: Floats


Answered = Sequence[Place]


class Way(NamedTuple):
    """How to guess. The edge's `branches` likeliest tokens are run on with in one batch; with
    `redraft` what was guessed behind a wrong token is read again behind the right one, in one
    batch, where that gained so far; with `early` consults that are foreseen leave a step early;
    consults are for `span` tokens.
    """

    name: str
    branches: int = 1
    redraft: bool = False
    early: bool = False
    span: int = 1


WAYS = (
    Way("one guess"),
    Way("two branches", branches=2),
    Way("four branches", branches=4),
    Way("redraft", redraft=True),
    Way("two branches, redraft", branches=2, redraft=True),
    Way("asked a step early", early=True),
    Way("spans of two", span=2),
)


def recorded(share: float, router: Router, threshold: float, questions: int) -> list[Answered]:
    """Answers of the bundled pair."""
    task = pocketqa().first(questions)
    answers: list[Answered] = []
    with (
        closing(LlamaModel(bundled("edge"), threads=1)) as edge,
        closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1))) as cloud,
    ):
        decoder = Decoder(edge, router=router, policy=Policy(threshold=threshold), cloud=cloud)
        told = f"{share:.0%}"
        for question in track(task.questions, told, console=Console(stderr=True), transient=True):
            ids = question_ids(edge.tokenizer, question)
            with decoder.stream(ids, max_tokens=task.max_tokens, candidates=True) as events:
                tokens = collect(events).tokens
            with closing(edge.session(Needs.HIDDEN)) as session:
                answers.append(list(_places(session, ids, tokens, edge.tokenizer.eos_ids)))
    return answers


def _places(
    session: EdgeSession, prompt: Sequence[int], tokens: Sequence[Token], ends: frozenset[int]
) -> Iterator[Place]:
    ids = [token.id for token in tokens]
    session.open(prompt)
    hidden = [np.array(session.step().hidden)]
    hidden += [np.array(step.hidden) for step in session.steps(ids[:-1])]
    for index, token in enumerate(tokens):
        known = [candidate.id for candidate in token.edge]
        margin = token.edge[0].logprob - token.edge[1].logprob
        rank, wrong = None, list[int]()
        if token.source == "cloud":
            rank = known.index(token.id) if token.id in known else len(known)
            if rank:
                session.open([*prompt, *ids[:index], known[0]])
                wrong = _continued(session, ends)
        pairs = zip(wrong, ids[index + 1 :], strict=False)
        matches = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
        if matches is None:
            matches = min(len(wrong), len(ids) - index - 1)
        yield Place(rank, matches, len(wrong), margin, token.score or 0.0, hidden[index])


def _continued(session: EdgeSession, ends: frozenset[int]) -> list[int]:
    """What the edge goes on with; an end is no guess."""
    wrong: list[int] = []
    while len(wrong) < WRONG:
        token = session.step().proposed
        if token in ends:
            break
        wrong.append(token)
        session.extend([token])
    return wrong


def foresight(answers: Sequence[Answered], recall: float) -> set[tuple[int, int]]:
    """Pairs (answer, index) behind which a consult is foreseen: by a logistic regression on the
    hidden state, fitted on the first answers, cut where it finds `recall` of the consults there.
    """
    where = [(a, i) for a, answer in enumerate(answers) for i in range(len(answer) - 1)]
    inputs = np.array([answers[a][i].hidden for a, i in where], np.float64)
    asked = np.array([answers[a][i + 1].rank is not None for a, i in where], np.float64)
    fitted = np.array([a < FIRST_TRAINED * len(answers) for a, _ in where])
    inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
    weights, bias = np.zeros(inputs.shape[1]), float(np.log(asked.mean()))
    for _ in range(400):
        error = 1 / (1 + np.exp(-(inputs[fitted] @ weights + bias))) - asked[fitted]
        weights -= 0.5 * (inputs[fitted].T @ error / fitted.sum() + 1e-3 * weights)
        bias -= 0.5 * float(error.mean())
    scores = inputs @ weights + bias
    cut = np.quantile(scores[fitted & (asked == 1)], 1 - recall)
    return {at for at, score in zip(where, scores, strict=True) if score >= cut}


class Link(NamedTuple):
    """Seconds of a `trip`, an edge's pace, and the seconds that a completion is waited for."""

    trip: float
    pace: Pace
    patience: float


class Run:
    """One answer, computed: seconds after the first step."""

    def __init__(self, answer: Answered, way: Way, link: Link, redrafts: Redrafts) -> None:
        self._answer, self._way, self._redrafts = answer, way, redrafts
        self._trip, self._pace, self._patience = link
        self.seconds = 0.0
        self._head = 0
        self._flights: dict[int, float] = {}
        self._known: dict[int, float] = {}

    def over(self, early: Collection[int]) -> "Run":
        """Go through it; behind the positions in `early` a consult leaves before the step."""
        for index, place in enumerate(self._answer):
            if index > self._head:
                self.seconds += self._pace.of(1)
                self._head = index
            if place.rank is not None:
                self._consult(index, place)
            if index in early:
                self._flights.setdefault(index + 1, self.seconds + self._trip)
        return self

    def _consult(self, index: int, place: Place) -> None:
        lands = self._known.pop(index, None)
        lands = lands or self._flights.pop(index, self.seconds + self._trip)
        branches = self._way.branches if self._head == index else 1
        right = place.rank is not None and place.rank < branches
        self._walk(index, right=right)
        ahead = self._run_ahead(index, lands, branches, right=right)
        if self._way.span > 1:
            self._known[index + 1] = lands
        if place.rank == 0 or right:
            return
        self._flights.clear()
        self._head = index
        drafted = min(ahead, place.wrong, WRONG - 1, len(self._answer) - index - 1)
        if drafted > 0 and self._way.redraft and self._redrafts.pays(place.score):
            right = min(drafted, place.matches)
            seconds = self._pace.of(drafted + 1)
            self.seconds += seconds
            step = self._pace.of(1)
            self._redrafts.gained(place.score, (right + 1) * step - seconds, step)
            self._head = min(index + 1 + right, len(self._answer) - 1)

    def _walk(self, index: int, *, right: bool) -> None:
        """Steps that are there already send their consults at once, up to a wrong guess."""
        for at in range(index + 1, self._head + 1):
            if self._answer[at - 1].rank and not (right and at - 1 == index):
                break
            self._send(at)

    def _send(self, at: int) -> None:
        asked = self._answer[at].rank is not None
        if asked and at not in self._flights and len(self._flights) < FLIGHTS - 1:
            self._flights[at] = self.seconds + self._trip

    def _run_ahead(self, index: int, lands: float, branches: int, *, right: bool) -> int:
        """Until a consult lands; how many steps there are behind it by then."""
        answer = self._answer
        while lands - self.seconds > self._patience:
            off = next((at for at in range(index, self._head + 1) if answer[at].rank), None)
            off = None if off == index and right else off
            end = len(answer) - 1 if off is None else off + answer[off].wrong
            if self._head >= min(end, index + LONGEST):
                break
            self.seconds += self._pace.of(branches)
            self._head += 1
            if off is None:
                self._send(self._head)
        self.seconds = max(self.seconds, lands)
        return self._head - index


class Computed(NamedTuple):
    """Of a way: time per token over the edge alone, and cloud tokens in vain a token."""

    ratio: float
    wasted: float


def computed(answers: Sequence[Answered], way: Way, trip: float, pace: Pace) -> Computed:
    """Over the answers that no foresight was fitted on."""
    step, redrafts = pace.of(1), Redrafts()
    link = Link(trip + ENGINE, pace, rates(answers)[1] * step)
    early = foresight(answers, RECALL) if way.early else set[tuple[int, int]]()
    seconds, steps, vain = 0.0, 0, 0
    for number, answer in enumerate(answers):
        if number < FIRST_TRAINED * len(answers):
            continue
        seen = {index for at, index in early if at == number}
        seconds += Run(answer, way, link, redrafts).over(seen).seconds
        steps += len(answer) - 1
        vain += sum(answer[index + 1].rank is None for index in seen)
        if way.span > 1:
            vain += sum(_is_vain(place, after) for place, after in pairwise(answer))
    return Computed(seconds / (steps * step), vain / steps)


def _is_vain(place: Place, after: Place) -> bool:
    """Whether a consult's second token is of no use: nobody asks there, or the edge has its own."""
    return place.rank is not None and (after.rank is None or place.rank == 0)


def rates(answers: Sequence[Answered]) -> tuple[float, float]:
    """p and d."""
    held = [a for n, a in enumerate(answers) if n >= FIRST_TRAINED * len(answers)]
    places = [place for answer in held for place in answer]
    consulted = [place for place in places if place.rank is not None]
    changed = sum(place.rank != 0 for place in consulted) / max(1, len(consulted))
    return len(consulted) / len(places), changed


def completions(name: str, answers: Sequence[Answered]) -> list[str]:
    """What the completions were."""
    found = [place for answer in answers for place in answer if place.rank is not None]
    ranks = np.array([place.rank for place in found])
    close = ranks[np.argsort([place.margin for place in found])[: max(1, len(found) // 5)]]
    changed = [place.matches for place in found if place.rank]
    behind = [np.mean([m >= n for m in changed]) for n in (1, 2, 4)]
    parts = [np.mean(ranks == rank) for rank in (0, 1, 2)] + [np.mean(ranks > 2)]
    cells = [f"{part:.0%}" for part in (*parts, np.mean(close == 0), np.mean(close == 1), *behind)]
    return line([name, str(len(found)), *cells])


HEAD = (
    *("router, asked", "consults", "the edge's own", "its second", "its third", "another"),
    *("of the closest fifth: own", "second", "changed: 1 token behind it the same", "2", "4"),
)


def entropy_threshold(share: float, questions: int) -> float:
    """Of the edge's own answers."""
    task = pocketqa("calibration").first(questions)
    with closing(LlamaModel(bundled("edge"), threads=1)) as edge:
        decoder = Decoder(edge, router=Entropy(), policy=Policy(cloud_share=0.0))
        scores = [
            token.score or 0.0
            for question in task.questions
            for token in decoder.generate(
                question_ids(edge.tokenizer, question), max_tokens=task.max_tokens
            ).tokens
        ]
    return float(np.quantile(scores, 1 - share))


def table(answers: dict[str, list[Answered]], trips: Sequence[float]) -> list[str]:
    """A line for each router and share, pace, and way."""
    told = [f"RTT {1000 * trip:.0f} ms" for trip in trips]
    lines = line(["router, asked", "pace", "way", *told, "cloud tokens in vain"], head=True)
    for name, found in answers.items():
        p, d = rates(found)
        for pace_name, pace in PACES.items():
            bounds = [1 + p * d * (trip + ENGINE) / pace.of(1) for trip in trips]
            lines += line([name, pace_name, "bound", *(f"{bound:.3f}" for bound in bounds), "-"])
            for way in WAYS:
                ratios = [computed(found, way, trip, pace) for trip in trips]
                cells = [
                    f"{one.ratio:.3f} ({(one.ratio - 1) / (bound - 1):.2f})"
                    for one, bound in zip(ratios, bounds, strict=True)
                ]
                lines += line([name, pace_name, way.name, *cells, f"{ratios[0].wasted:.1%}"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.03, 0.07, 0.15))
    parser.add_argument("--trips", type=float, nargs="+", default=(20, 50, 100, 200), help="ms")
    options = parser.parse_args()
    trips = [trip / 1000 for trip in options.trips]
    answers: dict[str, list[Answered]] = {}
    with closing(LlamaModel(bundled("edge"), threads=1)) as model:
        router, card = open_router(Settings(), model)
    for share in options.shares:
        threshold = card.threshold(share) if card else None
        if threshold is None:
            parser.error(f"no threshold for {share}")
        answers[f"bundled, {share:.0%}"] = recorded(share, router, threshold, options.questions)
    for share in options.shares:
        cut = entropy_threshold(share, options.questions)
        answers[f"entropy, {share:.0%}"] = recorded(share, Entropy(), cut, options.questions)
    lines = line(HEAD, head=True)
    for name, found in answers.items():
        lines += completions(name, found)
    print("\n".join([*lines, "", *table(answers, trips)]))


if __name__ == "__main__":
    sys.exit(main())
