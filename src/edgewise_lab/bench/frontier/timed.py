"""Systems made of the product's own decoder, as a user sees them: an edge alone, a pair."""

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from edgewise.edge.base import EdgeModel
from edgewise.events import Event, Finished, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.generation import Generation
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.routers.base import Router
from edgewise.routers.uncertainty import MaxProb
from edgewise.testing.link import Link
from edgewise_lab.bench.frontier.base import MeasuredAnswer
from edgewise_lab.bench.frontier.recorded import RecordedCloud
from edgewise_lab.bench.pace import PacedEdge
from edgewise_lab.evaluation.baselines import AtPosition, commit_point
from edgewise_lab.evaluation.room import contexts_of, room
from edgewise_lab.evaluation.systems import edge_alone, outcome_of, question_ids, question_prompt
from edgewise_lab.evaluation.tasks.base import Question


class Watch:
    """What a user sees of an answer, and when; from now on."""

    def __init__(self) -> None:
        self.begun = self._last = time.monotonic()
        self._first: float | None = None
        self.gap = 0.0

    def saw(self, text: str) -> None:
        """Some of the answer's text, just now; an empty one shows nothing."""
        if not text:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now
        else:
            self.gap = max(self.gap, now - self._last)
        self._last = now

    @property
    def seconds(self) -> float:
        """Until now."""
        return time.monotonic() - self.begun

    @property
    def ttft(self) -> float:
        """Until the first text; until now where there was none."""
        return self.seconds if self._first is None else self._first - self.begun


class Travelled:
    """Bytes over a link from now on; None where there is none."""

    def __init__(self, link: Link | None) -> None:
        self._link = link
        self._before = (0, 0) if link is None else (link.up, link.down)

    @property
    def bytes(self) -> tuple[int | None, int | None]:
        """Sent and received."""
        if self._link is None:
            return None, None
        return self._link.up - self._before[0], self._link.down - self._before[1]


def pair_policy(
    threshold: float, *, run_ahead: int = 0, max_cloud_tokens: int | None = None
) -> Policy:
    """A pair's policy with a static threshold. A cloud that fails ends it: see `MeasuredSystem`."""
    return Policy(
        threshold=threshold,
        run_ahead=run_ahead,
        max_cloud_tokens=max_cloud_tokens,
        deadline=LONGEST_DEADLINE,
        on_cloud_error="raise",
    )


class Timed:
    """Implements `MeasuredSystem` over a `Decoder`."""

    def __init__(
        self,
        edge: PacedEdge,
        max_tokens: int,
        *,
        router: Router,
        policy: Policy,
        cloud: RecordedCloud | None = None,
        link: Link | None = None,
    ) -> None:
        """`link` is that between the two, where its bytes are to be counted."""
        self._edge, self._cloud, self._link = edge, cloud, link
        self._max_tokens = max_tokens
        # It stands for the model behind it.
        model: Any = edge
        self._decoder = Decoder(model, router=router, policy=policy, cloud=cloud)

    def answer(self, question: Question) -> MeasuredAnswer:
        decoder, edge = self._decoder, self._edge
        prompt = question_prompt(decoder.edge.tokenizer, question)
        longest = room(len(prompt.ids), self._max_tokens, *contexts_of(decoder.edge, decoder.cloud))
        if self._cloud is not None:
            self._cloud.take()
        before, travelled = (edge.decodes, edge.positions), Travelled(self._link)
        watch = Watch()
        with decoder.stream(prompt, max_tokens=longest) as events:
            answer = collect(_watched(events, watch))
        seconds, ttft = watch.seconds, watch.ttft
        outcome = msgspec.structs.replace(outcome_of(question, answer), seconds=seconds)
        sent, received = travelled.bytes
        return MeasuredAnswer(
            outcome=outcome,
            ttft=ttft,
            gap=watch.gap,
            decodes=edge.decodes - before[0],
            positions=edge.positions - before[1],
            requests=() if self._cloud is None else self._cloud.take(),
            sent=sent if self._cloud is not None else 0,
            received=received if self._cloud is not None else 0,
        )


def _watched(events: Generation, watch: Watch) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Token | Finished):
            watch.saw(event.text)
        yield event


def timed_edge(edge: PacedEdge, max_tokens: int) -> Timed:
    """The edge alone. Its uncertainty is max-prob's, as in `edge_alone`."""
    return Timed(edge, max_tokens, router=MaxProb(), policy=Policy(cloud_share=0.0))


class TimedCommitPoint:
    """Implements `MeasuredSystem`: as `CommitPoint`, one consult where a choice is first named.

    Where that is was found out before, by an answer of the edge's that is not counted: the time is
    that of a device which knew the place.
    """

    def __init__(
        self,
        model: EdgeModel,
        edge: PacedEdge,
        max_tokens: int,
        *,
        cloud: RecordedCloud,
        run_ahead: int = 0,
        link: Link | None = None,
    ) -> None:
        """`model` is what is behind `edge`, at its own pace."""
        self._model, self._max_tokens = model, max_tokens
        self._place = AtPosition(None)
        policy = pair_policy(1.0, max_cloud_tokens=1, run_ahead=run_ahead)
        self._timed = Timed(
            edge, max_tokens, router=self._place, policy=policy, cloud=cloud, link=link
        )

    def answer(self, question: Question) -> MeasuredAnswer:
        found = edge_alone(self._model, self._max_tokens).ask(question)
        tokenizer = self._model.tokenizer
        at = commit_point(tokenizer, [token.id for token in found.tokens], question)
        before = len(question_ids(tokenizer, question))
        self._place.position = None if at is None else before + at
        return self._timed.answer(question)
