"""A pair of real models on a task's published files: `python -m benchmarks.real_pair`.

Trains a router on the first questions of the train file (label `rescue`), and lets it, the routers
that need no training, random and one consult at the commit point answer the test file's first
questions. The systems answer question by question, and what either model makes of a prefix is
computed once for all of them, so that two slow models on one core get far enough. Answers are
greedy: those that `edgewise eval` gives, but for the rounding of other batches. Prints Markdown of
the questions that all systems have answered; everything is kept in `--work`: interrupted, it goes
on.

Thresholds come from the router's scores along the edge's own answers to the train and calibration
questions, moved once by the share that came of it on `--tried` of the latter. Consults can make
answers so much longer that a lower threshold comes to a smaller share: then the one before stays.
With `--tried 0` they are those that the product starts at, from the edge's own writing.

`--pair` (again for more) names systems as ROUTER@SHARE: `text-ranks` is the router trained here,
others are as `edgewise run --router` has them. At each share `query-level` is a cascade as in
FrugalGPT (arXiv 2305.05176): the edge's answer stays where its own mean confidence is high enough,
else the cloud writes it anew. Its threshold is the best for the very questions that are measured,
and its tokens are those of both models. `--oracle` asks for as many tokens as an answer needs to be
right. `--unlike P` is a router that knows what the cloud would write: it asks wherever the cloud
gives the edge's token a probability below P.

Where answers are long, `--mismatches` draws the places of each wrong answer whose rollout is run;
the other places at which the cloud would have written another token get the mean of those drawn.

`--timed` is for an idle machine: the edge and the pairs answer that many questions again, at the
pace that the edge has here with `--threads`. What the cloud completes is known by then; it comes
when a large model on a GPU (`EnginePace`) behind `--round-trip` would have sent it.
"""

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.completion import Completion
from edgewise.edge.base import EdgeModel, Floats, Needs, Step, Written
from edgewise.edge.step import LogitsStep
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.pair import open_models
from edgewise.prompts import Prompt
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, read_card, start_at
from edgewise.routers.named import identity_named, identity_of, router_named, router_of
from edgewise.routers.thresholds import own_thresholds
from edgewise.settings import Settings, fraction
from edgewise_lab.bench.pace import DelayedCloud, EnginePace
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.plan import COMMIT_POINT, ORACLE, manifest
from edgewise_lab.evaluation.report import CLOUD, EDGE, rows
from edgewise_lab.evaluation.statistics import difference_interval, mean_interval
from edgewise_lab.evaluation.store import Cell, Store
from edgewise_lab.evaluation.systems import (
    CLOUD_DEADLINE,
    CloudAlone,
    CommitPoint,
    Decoded,
    Outcome,
    System,
    cloud_share,
    edge_alone,
    is_cut,
    paired,
    query_level,
    question_ids,
    text_of,
    written,
)
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.named import with_calibration
from edgewise_lab.tables import line
from edgewise_lab.training.fit import Recipe
from edgewise_lab.training.labels.base import Case, Labelling
from edgewise_lab.training.labels.published import Rescue
from edgewise_lab.training.router import Training
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud, WrappedSession

SHARES = (0.05, 0.10)
TRAINED = "text-ranks"
DEFAULT = (TRAINED, "entropy", "max-prob", "random")
TOP = 64
TEXT_RANKS = ("text", "ranks")

Ids = tuple[int, ...]
Routers = Mapping[str, tuple[Router, str]]
"""By name: the router, and its identity."""

Systems = dict[Cell, tuple[str, System]]
"""By cell: the identity of its router, and who answers."""


class SampledRescue(Rescue):
    """`Rescue` with rollouts at no more than `most` places of an answer, drawn by its question."""

    def __init__(self, most: int) -> None:
        self.name, self._most = f"{Rescue.name}-{most}", most

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        cloud, ids = case.sample.cloud, case.sample.ids
        places = [i for i, token in enumerate(cloud) if token != ids[i]]
        if case.sample.right or not places:
            return values
        drawn = random.Random(case.question.id).sample(places, min(self._most, len(places)))
        right = yield from case.right("edge", [(i, cloud[i]) for i in drawn])
        for i in places:
            values[i] = sum(right) / len(right)
        for i, value in zip(drawn, right, strict=True):
            values[i] = float(value)
        return values


class _Held:
    """A step whose logits may be gone: of those, the likeliest are kept."""

    def __init__(self, step: LogitsStep, written: Written) -> None:
        self._step, self.written = step, written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def logprob(self, token: int) -> float:
        ids, logits = self._step.top(TOP)
        at = np.flatnonzero(ids == token)
        # Only told of a token that somebody else wrote: no score and no choice reads it.
        return float(logits[at[0] if len(at) else -1]) - self._step.log_sum


class KnownEdge:
    """An `EdgeModel` that computes the step behind a prefix once, until it is to `forget`."""

    def __init__(self, model: EdgeModel) -> None:
        self._model, self._known = model, dict[Ids, LogitsStep]()
        self._own = model.session(Needs.ENTROPY | Needs.TOP | Needs.HIDDEN, top=TOP)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "_KnownSession":
        return _KnownSession(self)

    def sequences(self, width: int) -> None:
        """None: what is run side by side is known to nobody."""

    def at(self, ids: Ids) -> LogitsStep:
        if ids not in self._known:
            self._own.open(ids)
            step = self._own.step()
            assert isinstance(step, LogitsStep)
            self._known[ids] = step
        return self._known[ids]

    def forget(self) -> None:
        self._known.clear()


class _KnownSession:
    def __init__(self, edge: KnownEdge) -> None:
        self._edge, self._ids, self._prompt = edge, list[int](), 0

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        self._ids, self._prompt = list(ids), len(ids)
        return 0

    def extend(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def step(self) -> Step:
        ids = tuple(self._ids)
        written = Written(ids, self._prompt, self._edge.tokenizer)
        return cast(Step, _Held(self._edge.at(ids), written))

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        found: list[Step] = []
        for token in ids:
            self.extend([token])
            found.append(self.step())
        return found

    def rewind(self, position: int) -> None:
        del self._ids[position:]

    def checkpoint(self, position: int) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...


class KnownCloud(WrappedCloud):
    """A cloud model in this process whose completions are computed once, in one session."""

    def __init__(self, cloud: CloudModel) -> None:
        super().__init__(cloud, self._once)
        self.known = dict[tuple[Ids, int], Completion]()
        self.one = cloud.open(Prompt(()))

    def open(self, prompt: Prompt) -> CloudSession:
        return _KnownCloudSession(self.one, self.intercept)

    def forget(self) -> None:
        self.known.clear()

    def _once(self, ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        key, done = (tuple(ids), n), Flying()
        if key not in self.known:
            self.known[key] = send().result()
        done.set_result(self.known[key])
        return done


class _KnownCloudSession(WrappedSession):
    def close(self) -> None: ...


class Unlike:
    """A system that asks where the cloud gives the edge's token a probability below `limit`."""

    def __init__(self, edge: EdgeModel, cloud: EdgeModel, max_tokens: int, limit: float) -> None:
        self._tokenizer, self._most, self._limit = edge.tokenizer, max_tokens, limit
        self._edge, self._cloud = edge.session(), cloud.session(Needs.ENTROPY)

    def answer(self, question: Question) -> Outcome:
        """Greedy. The cloud reads every token, and writes those that it would hardly."""
        begun, consults = time.monotonic(), 0
        prompt = question_ids(self._tokenizer, question)
        ids: list[int] = []
        self._edge.open(prompt)
        self._cloud.open(prompt)
        while len(ids) < self._most and not (ids and ids[-1] in self._tokenizer.eos_ids):
            self._edge.extend(ids[-1:])
            self._cloud.extend(ids[-1:])
            token, step = self._edge.step().proposed, self._cloud.step()
            if step.proposed != token and step.logprob(token) < np.log(self._limit):
                token, consults = step.proposed, consults + 1
            ids.append(token)
        return written(
            question,
            text_of(self._tokenizer, ids),
            len(ids),
            cut=is_cut(self._tokenizer, ids),
            cloud_tokens=consults,
            consults=consults,
            changed=consults,
            seconds=time.monotonic() - begun,
        )


class Measurement:
    """What is measured, and what of it is done."""

    def __init__(
        self,
        settings: Settings,
        test: tuple[Task, Task],
        train: Task,
        work: Path,
        *,
        mismatches: int | None = None,
        tried: int = 30,
    ) -> None:
        """`test` is the task and what thresholds are set on, `tried` of it."""
        self._models = open_models(settings)
        self._edge, self._cloud = self._models.both()
        self.task, self.calibration, self.train = *test, train
        self.store = Store(work / "answers", manifest(*test, self._edge, self._cloud), Outcome)
        self.edge: Any = KnownEdge(self._edge)
        self.cloud: Any = KnownCloud(self._cloud)
        self._folder, self._tried = work / "router", tried
        self._label = Rescue() if mismatches is None else SampledRescue(mismatches)

    def trained(self, inputs: tuple[str, ...]) -> tuple[Router, str]:
        """The router, fitted now if it is not there, and its identity."""
        if not (self._folder / CONFIG).exists():
            training = Training(
                self.train,
                self.calibration,
                self._folder,
                edge=self._edge,
                cloud=self._cloud,
                label=self._label,
                inputs=inputs,
                recipe=Recipe(),
            )
            training.collect()
            training.label()
            training.fit()
        return checkpoint(self._folder)

    def router(self, name: str, also: Mapping[str, Path]) -> tuple[Router, str]:
        """By the name that `--pair` has, and its identity; `also` are checkpoints by name."""
        if name == TRAINED:
            return self.trained(TEXT_RANKS)
        if name in also:
            return checkpoint(also[name])
        return router_named(name), identity_named(name)

    def systems(
        self,
        routers: Routers,
        cells: Sequence[Cell],
        *,
        oracle: bool = False,
        unlike: float | None = None,
    ) -> Systems:
        """`cells` are the pairs among them."""
        edge, cloud, most = self.edge, self.cloud, self.task.max_tokens
        found: Systems = {
            EDGE: ("", edge_alone(edge, most)),
            CLOUD: ("", CloudAlone(cloud, edge.tokenizer, most)),
        }
        if any(question.choices for question in self.task.questions):
            found[COMMIT_POINT] = "", CommitPoint(edge, cloud, most)
        if oracle:
            assert self._cloud.local is not None
            found[ORACLE] = "", Oracle(self._edge, self._cloud.local, most)
        if unlike is not None:
            assert self._cloud.local is not None
            both = self._edge, self._cloud.local
            found[Cell(f"unlike-{unlike:g}")] = "", Unlike(*both, most, unlike)
        known = {cell: self.store.threshold(cell, routers[cell.system][1]) for cell in cells}
        lacking = [cell for cell, threshold in known.items() if threshold is None]
        for cell, threshold in self._thresholds(routers, lacking).items():
            self.store.set_threshold(cell, threshold, routers[cell.system][1])
            known[cell] = threshold
        for cell, threshold in known.items():
            assert threshold is not None
            router, identity = routers[cell.system]
            found[cell] = identity, self._pair(router, threshold)
        return found

    def _pair(self, router: Router, threshold: float) -> Decoded:
        pair = paired(self.edge, router, threshold, self.cloud, deadline=CLOUD_DEADLINE)
        return Decoded(pair, self.task.max_tokens)

    def _thresholds(self, routers: Routers, cells: Sequence[Cell]) -> dict[Cell, float]:
        """Question by question, so that what is known of one serves all routers."""
        if not self._tried:
            return {cell: self._start(*routers[cell.system], _share(cell)) for cell in cells}
        fresh = [cell for cell in cells if cell.system != "random"]
        found = {cell: 1 - _share(cell) for cell in cells if cell.system == "random"}
        scores: dict[str, list[Floats]] = {cell.system: [] for cell in fresh}
        for question in [*self.train.questions, *self.calibration.questions] if fresh else ():
            for name, own in scores.items():
                own.append(self._scores(routers[name][0], question))
            self.forget()
        every = {name: np.concatenate(own) for name, own in scores.items()}
        first = {cell: float(np.quantile(every[cell.system], 1 - _share(cell))) for cell in fresh}
        answers: dict[Cell, list[Outcome]] = {cell: [] for cell in fresh}
        for question in self.calibration.questions[-self._tried :] if fresh else ():
            for cell in fresh:
                pair = self._pair(routers[cell.system][0], first[cell])
                answers[cell].append(pair.answer(question))
            self.forget()
        for name, own in every.items():
            before, last = 0.0, 0.0
            for cell in sorted((c for c in fresh if c.system == name), key=_share):
                share, realised = _share(cell), max(0.01, cloud_share(answers[cell]))
                moved = float(np.quantile(own, max(0.0, 1 - share * share / realised)))
                found[cell] = moved if realised > before else last
                before, last = realised, first[cell]
        return found

    def _start(self, router: Router, identity: str, share: float) -> float:
        """Where `edgewise run` starts on its first day."""
        found = start_at(own_thresholds(self._edge, router, identity), share)
        return 1 - share if found is None else found

    def _scores(self, router: Router, question: Question) -> Floats:
        """Along the edge's own answer."""
        answer = edge_alone(self.edge, self.task.max_tokens, router).ask(question)
        return np.array([token.score for token in answer.tokens], np.float32)

    def answer(self, systems: Systems, until: float) -> None:
        """Question by question, every system; no question is begun after `until`."""
        for question in self.task.questions:
            for cell, (identity, system) in systems.items():
                if self.store.get(cell, question, identity) is None:
                    self.store.add(cell, system.answer(question), identity)
            self.forget()
            if time.monotonic() > until:
                break
        for _, system in systems.values():
            if isinstance(system, Oracle):
                system.close()

    def done(self, systems: Systems) -> dict[Cell, list[Outcome]]:
        """Outcomes of the questions that every system has answered."""
        found: dict[Cell, list[Outcome]] = {cell: [] for cell in systems}
        for question in self.task.questions:
            own = [self.store.get(c, question, identity) for c, (identity, _) in systems.items()]
            for cell, outcome in zip(systems, own, strict=True):
                if outcome is not None and None not in own:
                    found[cell].append(outcome)
        for share in sorted({_share(cell) for cell in systems if cell.share is not None}):
            found[Cell("query-level", share)] = query_level(found[EDGE], found[CLOUD], share)
        return found

    def timed(self, routers: Routers, cells: Sequence[Cell], count: int, trip: float) -> list[str]:
        """Markdown of the first questions' times; `trip` is the round trip, seconds."""
        pace = EnginePace()
        cloud = DelayedCloud(self.cloud, lambda n, computed: trip + pace.of(n, computed))
        asked: dict[Cell, System] = {EDGE: edge_alone(self._edge, self.task.max_tokens)}
        for cell in cells:
            router, identity = routers[cell.system]
            threshold = self.store.threshold(cell, identity)
            assert threshold is not None
            policy = Policy(threshold=threshold, deadline=CLOUD_DEADLINE, speculate=16)
            pair = Decoder(self._edge, router=router, policy=policy, cloud=cloud)
            asked[cell] = Decoded(pair, self.task.max_tokens)
        taken: dict[Cell, list[float]] = {CLOUD: [], **{cell: [] for cell in asked}}
        for question in self.task.questions[:count]:
            whole = self.store.get(CLOUD, question, "")
            assert whole is not None
            prompt = len(question_ids(self._edge.tokenizer, question))
            taken[CLOUD].append(trip + pace.of(whole.output_tokens, prompt))
            for cell, system in asked.items():
                system.answer(question)  # the cloud's completions are known from now on
                taken[cell].append(system.answer(question).seconds)
            self.forget()
        lines = line(["system", "median answer, s", "mean, s"], head=True)
        for cell, seconds in taken.items():
            share = "" if cell.share is None else f" at {cell.share:.0%}"
            middle = f"{np.median(seconds):.2f}"
            lines += line([f"{cell.system}{share}", middle, _seconds(seconds)])
        return lines

    def forget(self) -> None:
        """Another question comes: what is known of this one helps nobody."""
        self.edge.forget()
        self.cloud.forget()


def checkpoint(folder: Path) -> tuple[Router, str]:
    """A router that is there, and its identity."""
    card = read_card(folder)
    return router_of(card, folder), identity_of(card, folder)


def _share(cell: Cell) -> float:
    assert cell.share is not None
    return cell.share


def table(found: Mapping[Cell, Sequence[Outcome]]) -> list[str]:
    """Markdown."""
    head = ["system", "right, %", "gap recovered, %", "above entropy, points", "cloud share, %"]
    lines = line([*head, "tokens an answer"], head=True)
    for row in rows(found):
        own = row.overall
        cell = Cell(own.system, own.cloud_share_asked)
        rival = found.get(Cell("entropy", own.cloud_share_asked))
        above = ""
        if rival and own.system != "entropy":
            above = _points([o.right for o in found[cell]], [o.right for o in rival])
        asked = "" if own.cloud_share_asked is None else f" at {own.cloud_share_asked:.0%}"
        gap = "" if own.gap_recovered is None else _ends(own.gap_recovered, own.gap_interval, 0)
        lines += line(
            [
                f"{own.system}{asked}",
                _ends(own.accuracy, own.interval, 1),
                gap if cell not in (EDGE, CLOUD) else "",
                above,
                _ends(own.cloud_share, own.cloud_share_interval, 1) if own.cloud_calls else "",
                f"{sum(o.output_tokens + o.discarded for o in found[cell]) / own.questions:.1f}",
            ]
        )
    return lines


def _seconds(taken: Sequence[float]) -> str:
    low, high = mean_interval(taken)
    return f"{np.mean(taken):.2f} ({low:.2f} to {high:.2f})"


def _points(one: Sequence[bool], other: Sequence[bool]) -> str:
    return _ends(float(np.mean(one) - np.mean(other)), difference_interval(one, other), 1)


def _ends(value: float, ends: tuple[float, float] | None, digits: int) -> str:
    low, high = (f"{100 * end:.{digits}f}" for end in ends or (value, value))
    return f"{100 * value:.{digits}f} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--edge", required=True)
    parser.add_argument("--cloud", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train-data", type=Path, required=True)
    parser.add_argument("--train", type=int, default=72)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--calibration", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--mismatches", type=int, help="places of an answer that are rolled out")
    parser.add_argument("--tried", type=int, default=30)
    parser.add_argument("--also", action="append", default=[], help="NAME=FOLDER of a checkpoint")
    parser.add_argument("--pair", action="append", default=[], help="NAME@SHARE (default: all)")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--unlike", type=float, metavar="P")
    parser.add_argument("--timed", type=int, default=0, metavar="QUESTIONS")
    parser.add_argument("--round-trip", type=float, default=0.05, metavar="SECONDS")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    test = with_calibration(
        chosen.task,
        "test",
        data=chosen.data,
        check=None,
        limit=chosen.questions,
        calibration=chosen.calibration,
        calibration_data=chosen.train_data,
    )
    train, _ = with_calibration(
        chosen.task,
        "train",
        data=chosen.train_data,
        check=None,
        limit=chosen.train,
        calibration=chosen.calibration,
    )
    settings = Settings(edge=chosen.edge, cloud=chosen.cloud, threads=chosen.threads)
    one = Measurement(
        settings, test, train, chosen.work, mismatches=chosen.mismatches, tried=chosen.tried
    )
    until = time.monotonic() + 60 * chosen.minutes
    also = {name: Path(folder) for name, _, folder in (g.partition("=") for g in chosen.also)}
    every = [f"{name}@{share}" for name in (*DEFAULT, *also) for share in SHARES]
    cells = [Cell(n, fraction(s)) for n, _, s in (p.partition("@") for p in chosen.pair or every)]
    routers = {cell.system: one.router(cell.system, also) for cell in cells}
    systems = one.systems(routers, cells, oracle=chosen.oracle, unlike=chosen.unlike)
    one.answer(systems, until)
    found = one.done(systems)
    print(f"{len(found[EDGE])} questions\n")
    print("\n".join(table(found)))
    if chosen.timed:
        print("\n".join(["", *one.timed(routers, cells, chosen.timed, chosen.round_trip)]))


if __name__ == "__main__":
    main()
