"""The systems that are compared: each answers a question, greedily, and reports what it cost."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.completion import Completion, metered
from edgewise.edge.base import EdgeModel, Needs, Step, Tokenizer
from edgewise.errors import CloudError, ContextOverflow
from edgewise.events import Event, Finished, Token
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.generation import Generation
from edgewise.loop.policy import Budget, Policy, SharedBudget
from edgewise.prompts import Prompt, prompt_of
from edgewise.routers.base import Router
from edgewise.routers.untrained import MaxProb
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import (
    first_mention,
    grader,
    is_right,
    is_strictly_right,
)


def max_answer_tokens(prompt: int, max_tokens: int, *contexts: int) -> int:
    """Tokens of the longest answer after `prompt` ids; like the decoder's, it ends with a context.

    Its last token may lie beyond the context, since nothing is computed after it.
    """
    return min([max_tokens, *(context - prompt + 1 for context in contexts)])


def contexts_of(edge: EdgeModel, cloud: CloudModel | None) -> tuple[int, ...]:
    """Longest sequences, ids; that of a cloud elsewhere is not known here."""
    local = None if cloud is None else cloud.local
    return (edge.context,) if local is None else (edge.context, local.context)


CLOUD_DEADLINE = 3600.0
"""Seconds the cloud may take for a whole answer: eight at a time on two cores take minutes each."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A graded answer with its cost.

    `right` by the lenient reading, `strict` by the strict one; neither is known of a reply that is
    `to_read` by a person. `cut` at the longest answer or a full context. `cloud_tokens` are those
    the answer holds, `wasted_tokens` those that were asked for besides; `consults` were answered,
    `changed` of them with a first token that the edge would not have written. `discarded` are the
    edge's tokens of an answer that the cloud then wrote anew. `cached` and
    `computed` are prompt tokens by the cloud engine's own meter, None where it has none.
    `uncertainty` is the mean score over the answer, `seconds` its duration. `bucket` is what the
    shared budget holds after it, None where answers are independent. `grader` is the digest of the
    code that graded it.
    """

    question: str
    family: str
    text: str
    right: bool
    strict: bool
    output_tokens: int
    cut: bool = False
    to_read: bool = False
    cloud_tokens: int = 0
    wasted_tokens: int = 0
    consults: int = 0
    changed: int = 0
    failed: int = 0
    discarded: int = 0
    cached: int | None = None
    computed: int | None = None
    uncertainty: float = 0.0
    seconds: float = 0.0
    bucket: float | None = None
    grader: str = ""


def graded(question: Question, outcome: Outcome) -> Outcome:
    """The outcome with its text graded anew."""
    return msgspec.structs.replace(outcome, **_verdict(question, outcome.text))


def as_graded_today(question: Question, outcome: Outcome) -> Outcome:
    """The outcome, graded anew if another grader did it."""
    return outcome if outcome.grader == grader() else graded(question, outcome)


def _verdict(question: Question, text: str) -> dict[str, Any]:
    return {
        "right": is_right(question, text),
        "strict": is_strictly_right(question, text),
        "to_read": question.check == "read",
        "grader": grader(),
    }


@contextmanager
def asking(question: Question) -> Generator[None]:
    """A cloud that fails says at which question."""
    try:
        yield
    except CloudError as error:
        error.message = f"Question {question.id!r}: {error.message}"
        raise


Saw = Callable[[str], None]
"""Is called with an answer's text as it comes."""


def unseen(text: str) -> None:
    """A `Saw` for those who wait for all."""


class System(Protocol):
    """Answers questions one at a time."""

    def answer(self, question: Question, saw: Saw = unseen) -> Outcome:
        """Greedy. Raises a `CloudError` where the cloud fails: a figure would be a mixture."""
        ...


def written(question: Question, text: str, output_tokens: int, **costs: Any) -> Outcome:
    """Grades an answer's text; `costs` are other fields of `Outcome`."""
    return Outcome(
        question=question.id,
        family=question.family,
        text=text,
        output_tokens=output_tokens,
        **_verdict(question, text),
        **costs,
    )


def outcome_of(question: Question, answer: Answer) -> Outcome:
    """Grades a decoder's answer."""
    usage = answer.usage
    scores = [token.score for token in answer.tokens if token.score is not None]
    return written(
        question,
        answer.text,
        len(answer.tokens),
        cut=answer.finish_reason == "length",
        cloud_tokens=usage.cloud_tokens,
        wasted_tokens=usage.wasted_tokens,
        consults=usage.cloud_calls - usage.failed_calls,
        changed=usage.correction_tokens,
        failed=usage.failed_calls,
        cached=usage.cloud_prompt_cached,
        computed=usage.cloud_prompt_computed,
        uncertainty=sum(scores) / max(1, len(scores)),
        seconds=answer.timing.total,
    )


class Decoded:
    """A decoder: the edge alone, or a pair with a static threshold (independent answers)."""

    def __init__(self, decoder: Decoder, max_tokens: int) -> None:
        self.decoder = decoder
        self._max_tokens = max_tokens

    def stream(self, question: Question, *, budget: Budget | None = None) -> Generation:
        """The answer event by event."""
        edge = self.decoder.edge
        prompt = question_prompt(edge.tokenizer, question)
        # Beyond the smaller context there would be no consult.
        contexts = contexts_of(edge, self.decoder.cloud)
        longest = max_answer_tokens(len(prompt.ids), self._max_tokens, *contexts)
        return self.decoder.stream(prompt, max_tokens=longest, budget=budget)

    def ask(self, question: Question, saw: Saw = unseen) -> Answer:
        """The answer with its tokens."""
        with asking(question), self.stream(question) as events:
            return collect(_watched(events, saw))

    def answer(self, question: Question, saw: Saw = unseen) -> Outcome:
        return outcome_of(question, self.ask(question, saw))


def _watched(events: Iterable[Event], saw: Saw) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Token | Finished):
            saw(event.text)
        yield event


class AsServed:
    """The pair as `edgewise serve` has it: one budget over all questions, in their order.

    Several threads may ask at a time.
    """

    def __init__(self, decoder: Decoder, max_tokens: int, last: Outcome | None = None) -> None:
        """`last` is the outcome after which to go on, of an earlier run."""
        self._asked = Decoded(decoder, max_tokens)
        level = None if last is None else last.bucket
        self._budgets = SharedBudget() if level is None else SharedBudget(level)
        self._left: dict[str, tuple[Budget, Budget]] = {}

    def answer(self, question: Question) -> Outcome:
        taken = self._budgets.take()
        with asking(question), self._asked.stream(question, budget=taken) as events:
            answer = collect(events)
            self._left[question.id] = taken, events.budget
        return outcome_of(question, answer)

    def settle(self, outcome: Outcome) -> Outcome:
        """Puts back what is left of an answer's budget, in the order in which they are kept."""
        self._budgets.settle(*self._left.pop(outcome.question))
        return msgspec.structs.replace(outcome, bucket=self._budgets.level)


def edge_alone(edge: EdgeModel, max_tokens: int, router: Router | None = None) -> Decoded:
    """The edge model; its uncertainty is `router`'s (default: max-prob)."""
    policy = Policy(cloud_share=0.0)
    return Decoded(Decoder(edge, router=router or MaxProb(), policy=policy), max_tokens)


def paired(
    edge: EdgeModel,
    router: Router,
    threshold: float,
    cloud: CloudModel,
    *,
    deadline: float | None = None,
    speculate: int = 0,
    max_cloud_tokens: int | None = None,
) -> Decoder:
    """Edge and cloud. A cloud that fails ends the evaluation: the figure would be a mixture."""
    policy = Policy(
        threshold=threshold,
        deadline=deadline,
        speculate=speculate,
        max_cloud_tokens=max_cloud_tokens,
        on_cloud_error="raise",
    )
    return Decoder(edge, router=router, policy=policy, cloud=cloud)


class CloudAlone:
    """The cloud model writes the whole answer in one consult, or so many tokens in each."""

    def __init__(
        self, cloud: CloudModel, tokenizer: Tokenizer, max_tokens: int, span: int | None = None
    ) -> None:
        self._cloud, self._tokenizer = cloud, tokenizer
        self._max_tokens, self._span = max_tokens, span or max_tokens

    def answer(self, question: Question, saw: Saw = unseen) -> Outcome:
        prompt = question_prompt(self._tokenizer, question)
        begun, ids, consults = time.monotonic(), list[int](), list[Completion]()
        with asking(question), closing(self._cloud.open(prompt)) as session:
            while len(ids) < self._max_tokens and (not ids or is_cut(self._tokenizer, ids)):
                n = min(self._span, self._max_tokens - len(ids))
                request = ConsultRequest([*prompt.ids, *ids], n, CLOUD_DEADLINE)
                consults.append(session.ask(request).result())
                ids += consults[-1].ids
                saw(text_of(self._tokenizer, consults[-1].ids))
                if len(consults[-1].ids) < n:
                    break  # its context is full
        return written(
            question,
            text_of(self._tokenizer, ids),
            len(ids),
            cut=is_cut(self._tokenizer, ids),
            cloud_tokens=len(ids),
            consults=len(consults),
            cached=total(one.cached for one in consults),
            computed=total(one.computed for one in consults),
            seconds=time.monotonic() - begun,
        )


_Number = TypeVar("_Number", int, float)


def total(counts: Iterable[_Number | None]) -> _Number | None:
    """Their sum; None if one is not known."""
    found: Any = 0
    for count in counts:
        found = metered(found, count)
    return found


def question_prompt(tokenizer: Tokenizer, question: Question) -> Prompt:
    """Prompt ids of the question, after the conversation before it."""
    return prompt_of(tokenizer, question.messages)


def question_ids(tokenizer: Tokenizer, question: Question) -> list[int]:
    return list(question_prompt(tokenizer, question).ids)


def cloud_identity(cloud: CloudModel) -> str:
    """Identity of the model, by content if it is in this process."""
    return cloud.identity() if cloud.local is None else cloud.local.fingerprint()


def require_room(task: Task, edge: EdgeModel, cloud: CloudModel) -> None:
    """Raise `ContextOverflow` for a question that leaves no room for an answer."""
    context = min(contexts_of(edge, cloud))
    for question in task.questions:
        size = len(question_ids(edge.tokenizer, question))
        if size > context:
            raise ContextOverflow(
                f"Question {question.id!r} of {task.name} has {size} tokens and the context holds "
                f"{context}",
                hint="leave it out, or raise the context",
                setting="ctx",
            )


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of an answer's ids, without end tokens."""
    kept = (token for token in ids if token not in tokenizer.eos_ids)
    return b"".join(map(tokenizer.piece, kept)).decode("utf-8", "replace")


def is_cut(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Whether an answer's ids end without an end token."""
    return not ids or ids[-1] not in tokenizer.eos_ids


def cloud_share(found: Sequence[Outcome]) -> float:
    """Cloud share of all outcomes' tokens together, as `Usage.cloud_share` is of one answer's."""
    cloud = sum(outcome.cloud_tokens + outcome.wasted_tokens for outcome in found)
    return min(1.0, cloud / max(1, sum(outcome.output_tokens for outcome in found)))


def changed_share(found: Sequence[Outcome]) -> float | None:
    """Fraction of the consults that changed the token; None without consults."""
    consults = sum(o.consults for o in found)
    return sum(o.changed for o in found) / consults if consults else None


class CommitPoint:
    """A system with one consult an answer, where the edge names a choice for the first time.

    In most answers to choices the choice is named before the conclusion, so this one token is
    the decisive one. Where it is shows in the edge's own answer, which is the same up to there,
    however its tokenizer cuts text. An answer that names no choice, or a question that has none,
    is the edge's alone.
    """

    def __init__(self, edge: EdgeModel, cloud: CloudModel, max_tokens: int) -> None:
        self._edge, self._cloud, self._max_tokens = edge, cloud, max_tokens

    def answer(self, question: Question, saw: Saw = unseen) -> Outcome:
        """Answers with at most one consult."""
        place = AtPosition(commit_position(self._edge, question, self._max_tokens))
        decoder = paired(self._edge, place, 1.0, self._cloud, max_cloud_tokens=1)
        return Decoded(decoder, self._max_tokens).answer(question, saw)


class AtPosition:
    """A router that scores 1 at one position; None: nowhere."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, position: int | None) -> None:
        self.position = position

    def score(self, step: Step) -> float:
        return float(step.position == self.position)


def commit_position(edge: EdgeModel, question: Question, max_tokens: int) -> int | None:
    """Position of the edge's first named choice in its own answer, in ids, prompt included."""
    answer = edge_alone(edge, max_tokens).ask(question)
    at = commit_point(edge.tokenizer, [token.id for token in answer.tokens], question)
    return None if at is None else len(question_ids(edge.tokenizer, question)) + at


def commit_point(tokenizer: Tokenizer, ids: Sequence[int], question: Question) -> int | None:
    """The index of the id that brings the first letter of the first choice named, or its label.

    None where no choice is named, or there is none to name.
    """
    pieces = [b"" if token in tokenizer.eos_ids else tokenizer.piece(token) for token in ids]
    # Surrogates stand for bytes that are no text, so that places in the text are places in these.
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    at = first_mention(text, question.choices or ())
    if at is None:
        return None
    left = len(text[:at].encode("utf-8", "surrogateescape"))
    for index, piece in enumerate(pieces):
        if left < len(piece):
            return index
        left -= len(piece)
    raise AssertionError("a place in the text lies in one of its pieces")


def query_level(edge: Sequence[Outcome], cloud: Sequence[Outcome], share: float) -> list[Outcome]:
    """Whole questions to the cloud, the edge's most uncertain first, within a cloud share.

    A cascade (FrugalGPT, arXiv 2305.05176): the edge answers first, and how unsure it was over its
    answer (`Outcome.uncertainty`) decides whether the cloud answers anew, so both take their time
    and the edge's tokens are `discarded`.
    """
    chosen = list(edge)
    for i in within(share, edge, cloud, [outcome.uncertainty for outcome in edge]):
        chosen[i] = msgspec.structs.replace(
            cloud[i],
            uncertainty=edge[i].uncertainty,
            discarded=edge[i].output_tokens,
            seconds=cloud[i].seconds + edge[i].seconds,
        )
    return chosen


NEVER = float("-inf")
"""The score of a question that is not sent whatever the share."""


def within(
    share: float, edge: Sequence[Outcome], cloud: Sequence[Outcome], scores: Sequence[float]
) -> list[int]:
    """Questions to send, the highest scores first, as long as cloud tokens stay within `share` of
    all output tokens."""
    sent: list[int] = []
    output, by_cloud = sum(o.output_tokens for o in edge), 0
    for i in sorted(range(len(edge)), key=lambda i: -scores[i]):
        output += cloud[i].output_tokens - edge[i].output_tokens
        by_cloud += cloud[i].cloud_tokens
        if by_cloud > share * output or scores[i] == NEVER:
            break
        sent.append(i)
    return sent
