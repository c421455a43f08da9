"""Builds every system over one pair; a cloud that does not stream answers in spans."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.completion import metered
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.errors import UsageError
from edgewise.loop.policy import CLOUD_SPAN
from edgewise.prompts import Prompt
from edgewise.routers.base import Router
from edgewise.testing.link import Link
from edgewise_lab.bench.frontier.billing import (
    CloudRequest,
    MeasuredAnswer,
    MeasuredSystem,
    RecordedCloud,
)
from edgewise_lab.bench.frontier.systems import (
    Streamed,
    Timed,
    TimedCommitPoint,
    Watch,
    pair_policy,
    timed_edge,
)
from edgewise_lab.bench.pace import UNPACED, DelayedCloud, EngineTime, Pace, PacedEdge
from edgewise_lab.evaluation.store import Cell, Store, run
from edgewise_lab.evaluation.systems import (
    CLOUD_DEADLINE,
    is_cut,
    question_prompt,
    text_of,
    written,
)
from edgewise_lab.evaluation.tasks.base import Question


class CloudInSpans:
    """Implements `MeasuredSystem`: the cloud writes `CLOUD_SPAN` tokens a request.

    Its requests are reported as the one request that the cloud alone would be: nobody would pay for
    the prompt again. Times are those of the spans.
    """

    def __init__(
        self,
        cloud: RecordedCloud,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        link: Link | None = None,
    ) -> None:
        """`link` leads to the cloud, where its bytes are to be counted."""
        self._cloud, self._tokenizer, self._link = cloud, tokenizer, link
        self._max_tokens = max_tokens

    def answer(self, question: Question) -> MeasuredAnswer:
        prompt = question_prompt(self._tokenizer, question)
        self._cloud.take()
        watch = Watch(self._link)
        ids = self._ids(prompt, watch)
        requests = self._cloud.take()
        text = text_of(self._tokenizer, ids)
        costs = {"cloud_tokens": len(ids), "cut": is_cut(self._tokenizer, ids)}
        return watch.measured(
            lambda: written(question, text, len(ids), consults=len(requests), **costs),
            requests=(_as_one(requests, len(ids)),),
        )

    def _ids(self, prompt: Prompt, watch: Watch) -> list[int]:
        ids: list[int] = []
        with closing(self._cloud.open(prompt)) as session:
            while len(ids) < self._max_tokens and not (ids and ids[-1] in self._tokenizer.eos_ids):
                n = min(CLOUD_SPAN, self._max_tokens - len(ids))
                asked = session.ask(ConsultRequest([*prompt.ids, *ids], n, CLOUD_DEADLINE))
                completion = asked.result()
                ids += completion.ids
                watch.saw(text_of(self._tokenizer, completion.ids))
        return ids


def _as_one(spans: Sequence[CloudRequest], written: int) -> CloudRequest:
    """The first prompt, and all that was written; the engine's work is that of all spans."""
    taken = [span.engine_seconds for span in spans]
    known = [seconds for seconds in taken if seconds is not None]
    computed: int | None = 0
    for span in spans:
        computed = metered(computed, span.computed)
    return CloudRequest(
        prompt=spans[0].prompt,
        seen=0,
        written=written,
        cached=spans[0].cached,
        computed=computed,
        engine_seconds=sum(known) if len(known) == len(taken) else None,
    )


SPANS_NOTE = (
    "asked for 16 tokens at a time, since only an engine streams, and billed as one request; name "
    "an engine's URL to have it streamed"
)
PLACE_NOTE = "its place was found before, by an answer that is not counted"


class PairSystems:
    """Makes systems of an edge model and a checked cloud, each with a pace and a count of its own.

    `close` gives their connections back; the models stay their owner's.
    """

    def __init__(
        self,
        edge: EdgeModel,
        cloud: CloudModel,
        max_tokens: int,
        *,
        pace: Pace = UNPACED,
        link: Link | None = None,
        key: str | None = None,
        seconds: EngineTime | None = None,
        slowed: bool = False,
    ) -> None:
        """`cloud` is reached over `link`, if there is one; `key` is what it is asked with.

        `seconds` tells an engine's time instead of its meter; with `slowed` the cloud is not there
        already at that pace, and is slowed down to it. Raises `UsageError` for a cloud of another
        vocabulary.
        """
        if cloud.boundaries is not None:
            raise UsageError(
                "The frontier compares models of one vocabulary",
                hint="choose two models of one family",
                setting="cloud",
            )
        self._model, self._pace, self._max_tokens = edge, pace, max_tokens
        self._cloud, self._link, self._key, self._seconds = cloud, link, key, seconds
        # What slows it down stands for the model behind it.
        self._asked = DelayedCloud(cloud, seconds) if slowed and seconds else cloud
        self._streams: list[Streamed] = []

    @property
    def streams(self) -> bool:
        """Whether the cloud alone is streamed: only an engine is asked for that."""
        return self._cloud.id_engine is not None

    def close(self) -> None:
        """Let go of connections."""
        for stream in self._streams:
            stream.close()

    def edge(self) -> MeasuredSystem:
        """The edge alone."""
        return timed_edge(self._paced(), self._max_tokens)

    def larger_edge(self, model: EdgeModel, pace: Pace) -> MeasuredSystem:
        """Another edge alone."""
        return timed_edge(PacedEdge(model, pace), self._max_tokens)

    def cloud(self) -> MeasuredSystem:
        """The cloud alone, streamed where it can be."""
        if not self.streams:
            return CloudInSpans(
                self._recorded(), self._model.tokenizer, self._max_tokens, link=self._link
            )
        engine = self._cloud.id_engine
        stream = Streamed(
            self._cloud.name,
            self._model.tokenizer,
            self._max_tokens,
            model=None if engine is None else engine.described.model,
            key=self._key,
            link=self._link,
            seconds=self._seconds,
        )
        self._streams.append(stream)
        return stream

    def pair(self, router: Router, threshold: float, speculate: int) -> MeasuredSystem:
        """Both, by a router with a static threshold; without `speculate` it waits for consults."""
        return Timed(
            self._paced(),
            self._max_tokens,
            router=router,
            policy=pair_policy(threshold, speculate=speculate),
            cloud=self._recorded(),
            link=self._link,
        )

    def commit_point(self, speculate: int) -> MeasuredSystem:
        """A system with one consult, where a choice is first named."""
        return TimedCommitPoint(
            self._model,
            self._paced(),
            self._max_tokens,
            cloud=self._recorded(),
            speculate=speculate,
            link=self._link,
        )

    def _paced(self) -> PacedEdge:
        return PacedEdge(self._model, self._pace)

    def _recorded(self) -> RecordedCloud:
        return RecordedCloud(self._asked, self._seconds)


def has_choices(questions: Sequence[Question]) -> bool:
    """Whether any question has a commit point."""
    return any(question.choices for question in questions)


def measure(
    name: str,
    system: Callable[[], MeasuredSystem],
    questions: Sequence[Question],
    store: Store[MeasuredAnswer],
    done: Callable[[], None] = lambda: None,
) -> list[MeasuredAnswer]:
    """Returns every question's answer, in order; creates `system` if one is missing.

    `done` is called for each, those of an earlier run included.
    """

    def answers(missing: Sequence[Question]) -> Iterator[MeasuredAnswer]:
        if missing:
            yield from map(system().answer, missing)

    return run(Cell(name), answers, questions, store, done)
