"""What the map is drawn from: measured on the pocket models, in this process and at their speed."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

import msgspec
import numpy as np

from edgewise import parts
from edgewise.addresses import Part, bundled
from edgewise.bench.frontier.streamed import Streamed
from edgewise.bench.pace import HALF_BILLION, Pace
from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.base import Task
from edgewise.evaluation.tasks.grading import is_strictly_right
from edgewise.events import Consult
from edgewise.gateway.process import gateway_process
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.routers.constant import Constant
from edgewise.settings import Settings
from edgewise.testing.paced_engine import EnginePace, PacedEngine

MODELS = ("edge", "larger edge", "pair", "cloud")
PARTS: tuple[Part, ...] = ("edge", "mid", "cloud")
ALONE = Policy(cloud_share=0.0)


class Answers(msgspec.Struct, frozen=True):
    """One model's answers: tokens of each, and how many of them are right, read strictly."""

    tokens: list[int]
    right: float

    @property
    def mean(self) -> float:
        return sum(self.tokens) / len(self.tokens)


class Engine(msgspec.Struct, frozen=True):
    """Seconds of a paced engine without a link: a consult, a stream's first token, each further."""

    consult: float
    first: float
    token: float


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Of so many questions: prompts in tokens, answers by model, p, d and agreement.

    `agreement` says for each token of the cloud's answers whether the edge would have written it.
    """

    share: float
    threshold: float
    prompts: list[int]
    answers: dict[str, Answers]
    asked: float
    changed: float
    agreement: list[list[bool]]
    engine: Engine

    @property
    def acceptance(self) -> float:
        """Of tokens drafted behind the cloud's own, those that stand."""
        every = [agreed for answer in self.agreement for agreed in answer]
        return sum(every) / len(every)


def scaled(step: float, larger: float = 1.0) -> Pace:
    """A 0.5B's pace, faster or slower: a step takes `larger` times `step` seconds."""
    factor = larger * step / HALF_BILLION.seconds[0]
    return Pace(HALF_BILLION.ids, tuple(factor * one for one in HALF_BILLION.seconds))


def measured(task: Task, share: float, url: str, pace: EnginePace, sample: int) -> Inputs:
    """`url` is a llama-server's with the pocket cloud; `sample` questions time the engine."""
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(closing(LlamaModel(bundled(part), threads=1)))
            for name, part in zip(("edge", "larger edge", "cloud"), PARTS, strict=True)
        }
        edge, cloud = models["edge"], parts.open_cloud(Settings(), models["edge"])
        assert cloud is not None
        stack.callback(cloud.close)
        router, card = parts.open_router(Settings(), edge)
        threshold = card.threshold(share) if card else None
        if threshold is None:
            raise SystemExit(f"The bundled router has no threshold for {share:.0%}.")
        pair = Decoder(edge, router=router, policy=Policy(threshold=threshold), cloud=cloud)
        found = {
            name: asked_of(Decoder(model, router=Constant(0.0), policy=ALONE), task)
            for name, model in models.items()
        }
        found["pair"] = asked_of(pair, task)
        calls = sum(answer.usage.cloud_calls for answer in found["pair"])
        changing = sum(answer.usage.changing_tokens for answer in found["pair"])
        return Inputs(
            share=share,
            threshold=threshold,
            prompts=[answer.usage.prompt_tokens for answer in found["edge"]],
            answers={name: _summed(task, found[name]) for name in MODELS},
            asked=calls / sum(len(answer.tokens) for answer in found["pair"]),
            changed=changing / max(1, calls),
            agreement=_agreement(edge, task, found["cloud"]),
            engine=timed_engine(edge, task.first(sample), threshold, url, pace),
        )


def asked_of(decoder: Decoder, task: Task) -> list[Answer]:
    """A decoder's answers to the questions."""
    tokenizer = decoder.edge.tokenizer
    return [
        decoder.generate(question_ids(tokenizer, question), max_tokens=task.max_tokens)
        for question in task.questions
    ]


def _summed(task: Task, answers: Sequence[Answer]) -> Answers:
    pairs = zip(task.questions, answers, strict=True)
    right = [is_strictly_right(question, answer.text) for question, answer in pairs]
    return Answers([len(answer.tokens) for answer in answers], sum(right) / len(right))


def _agreement(edge: EdgeModel, task: Task, answers: Sequence[Answer]) -> list[list[bool]]:
    """Where the edge, behind the cloud's own tokens, would have written the next of them."""
    agreed: list[list[bool]] = []
    for question, answer in zip(task.questions, answers, strict=True):
        prompt = question_ids(edge.tokenizer, question)
        ids = [token.id for token in answer.tokens]
        with closing(edge.session()) as session:
            session.open(prompt[:-1])
            proposed = [step.proposed for step in session.steps([prompt[-1], *ids[:-1]])]
        agreed.append([one == other for one, other in zip(proposed, ids, strict=True)])
    return agreed


def timed_engine(
    edge: EdgeModel, task: Task, threshold: float, url: str, pace: EnginePace
) -> Engine:
    """The engine as the two who ask it see it, on this machine without a link."""
    router, _ = parts.open_router(Settings(), edge)
    with closing(PacedEngine(url, pace)) as engine:
        with gateway_process(engine.url) as gateway, closing(GatewayCloud(gateway)) as cloud:
            cloud.check(edge.tokenizer)
            policy = Policy(threshold=threshold, deadline=LONGEST_DEADLINE, on_cloud_error="raise")
            decoder = Decoder(edge, router=router, policy=policy, cloud=cloud)
            seconds: list[float] = []
            for question in task.questions:
                ids = question_ids(edge.tokenizer, question)
                with decoder.stream(ids, max_tokens=task.max_tokens) as events:
                    seconds += [event.seconds for event in events if isinstance(event, Consult)]
        with closing(Streamed(engine.url, edge.tokenizer, task.max_tokens)) as alone:
            streamed = [alone.answer(question) for question in task.questions]
    rest = sum(one.outcome.seconds - one.ttft for one in streamed)
    tokens = sum(one.outcome.output_tokens - 1 for one in streamed)
    return Engine(
        consult=float(np.mean(seconds)),
        first=float(np.mean([one.ttft for one in streamed])),
        token=rest / tokens,
    )
