"""One system (edge alone, pair, cloud alone) over questions, answer by answer."""

from collections.abc import Callable, Sequence

import msgspec

from edgewise.chat import Message, prompt_ids
from edgewise.cloud.base import CloudModel
from edgewise.decoding import Answer, Decoder
from edgewise.edge.base import EdgeModel
from edgewise.evaluation.questions import Question, is_right
from edgewise.policy import Policy
from edgewise.routers.base import Router
from edgewise.routers.constant import Constant

MAX_TOKENS = 96


class Outcome(msgspec.Struct, frozen=True):
    """One answer. `cloud_tokens` counts those used and those wasted; `consults` were answered,
    `changed` of them with a first token that the edge would not have written."""

    question: str
    family: str
    right: bool
    output_tokens: int
    cloud_tokens: int = 0
    consults: int = 0
    changed: int = 0


def alone(model: EdgeModel) -> Decoder:
    """A decoder that never consults."""
    return Decoder(model, router=Constant(0.0), policy=Policy(threshold=1.0))


def paired(edge: EdgeModel, router: Router, threshold: float, cloud: CloudModel) -> Decoder:
    """A decoder with a static threshold: answers do not depend on each other."""
    policy = Policy(threshold=threshold, on_cloud_error="raise")
    return Decoder(edge, router=router, policy=policy, cloud=cloud)


def ask(decoder: Decoder, question: Question) -> Answer:
    """A greedy answer to one question."""
    messages = [Message("user", question.prompt)]
    return decoder.generate(prompt_ids(decoder.edge.tokenizer, messages), max_tokens=MAX_TOKENS)


def outcomes(
    decoder: Decoder, questions: Sequence[Question], done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Answer every question; `done` is called after each."""
    found: list[Outcome] = []
    for question in questions:
        answer = ask(decoder, question)
        usage = answer.usage
        found.append(
            Outcome(
                question.id,
                question.family,
                is_right(question, answer.text),
                output_tokens=len(answer.tokens),
                cloud_tokens=usage.cloud_tokens + usage.wasted_tokens,
                consults=usage.cloud_calls - usage.failed_calls,
                changed=usage.changing_tokens,
            )
        )
        done()
    return found


def cloud_share(found: Sequence[Outcome]) -> float:
    """Cloud tokens, used and wasted, over output tokens."""
    return sum(o.cloud_tokens for o in found) / sum(o.output_tokens for o in found)


def changed_share(found: Sequence[Outcome]) -> float | None:
    """Of the consults, how many changed the token; None without consults."""
    consults = sum(o.consults for o in found)
    return sum(o.changed for o in found) / consults if consults else None
