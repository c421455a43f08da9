"""The systems that are compared: each answers a question, greedily, and reports what it cost."""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from functools import reduce
from typing import Any

import msgspec

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.completion import metered
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.errors import CloudError, ContextOverflow
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.generation import Generation
from edgewise.loop.policy import Budget, Policy, SharedBudget
from edgewise.prompts import Prompt, prompt_of
from edgewise.routers.base import Router
from edgewise.routers.untrained import MaxProb
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import grader, is_right, is_strictly_right


def max_answer_tokens(prompt: int, max_tokens: int, *contexts: int) -> int:
    """Return the most tokens that an answer to a prompt of `prompt` tokens can have.

    It is `max_tokens`, or less if one of the `contexts` (in tokens) is full before. The last token
    needs no place there, since nothing is computed after it. Below 1 there is no room.
    """
    return min([max_tokens, *(context - prompt + 1 for context in contexts)])


def contexts_of(edge: EdgeModel, cloud: CloudModel | None) -> tuple[int, ...]:
    """Return the contexts in tokens: the edge's, and the cloud's if it is in this process."""
    local = None if cloud is None else cloud.local
    return (edge.context,) if local is None else (edge.context, local.context)


CLOUD_DEADLINE = 3600.0
"""Seconds that the cloud model may take for a whole answer, as one of many in parallel."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A graded answer with its cost; `question` is the question's id, `family` its kind.

    It is `right` in any format, `strict` in the requested one; neither counts if a person has
    `to_read` it. `cut`: it ended at its maximum length or at a full context.

    `cloud_tokens` counts the answer's tokens that the cloud wrote, `wasted_tokens` those requested
    in vain, `written` all that the cloud generated, verdicts too (None: the sum of both).
    `consults` were answered, `failed` were not. `changed` counts the cloud's tokens in place of
    different ones of the edge's, `discarded` the tokens of an edge's answer that the cloud replaced
    as a whole, `cached` and `computed` the cloud's prompt tokens by its engine's usage report
    (None: there is none).

    `uncertainty` is the router's mean score, `grader` a digest of the grading code. `bucket` is the
    level, after this answer, of a budget of cloud tokens that answers share: below 0 it is a debt.
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
    written: int | None = None
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
    return msgspec.structs.replace(outcome, **_verdict(question, outcome.text))


def as_graded_today(question: Question, outcome: Outcome) -> Outcome:
    """Return the outcome, graded again if another version of the grading code graded it."""
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
    """In a `with` block, put the question's id before the message of a `CloudError`."""
    try:
        yield
    except CloudError as error:
        error.message = f"Question {question.id!r}: {error.message}"
        raise


def written(question: Question, text: str, output_tokens: int, **costs: Any) -> Outcome:
    """Return the graded outcome of an answer; `costs` are further fields of `Outcome`."""
    return Outcome(
        question=question.id,
        family=question.family,
        text=text,
        output_tokens=output_tokens,
        **_verdict(question, text),
        **costs,
    )


def outcome_of(question: Question, answer: Answer) -> Outcome:
    """Return the graded outcome of a decoder's answer."""
    usage = answer.usage
    scores = [token.score for token in answer.tokens if token.score is not None]
    return written(
        question,
        answer.text,
        len(answer.tokens),
        cut=answer.finish_reason == "length",
        cloud_tokens=usage.cloud_tokens,
        wasted_tokens=usage.wasted_tokens,
        # Tokens that come with verdicts are not in `cloud_completion_tokens`.
        written=max(usage.cloud_completion_tokens, usage.cloud_tokens + usage.wasted_tokens),
        consults=usage.cloud_calls - usage.failed_calls,
        changed=usage.correction_tokens,
        failed=usage.failed_calls,
        cached=usage.cloud_prompt_cached,
        computed=usage.cloud_prompt_computed,
        uncertainty=sum(scores) / max(1, len(scores)),
        seconds=answer.timing.total,
    )


class Decoded:
    """A decoder (edge alone or a pair) as a system; none of its answers depends on another."""

    def __init__(self, decoder: Decoder, max_tokens: int) -> None:
        self.decoder = decoder
        self._max_tokens = max_tokens

    def stream(
        self,
        question: Question,
        *,
        budget: Budget | None = None,
        follow: Callable[[Budget], Budget] = lambda budget: budget,
    ) -> Generation:
        """Return the events of the answer, for a `with` statement.

        `budget` is what the cloud may write (None: the initial one). `follow` gets the budget
        before each verdict on a token, and returns it, perhaps changed.
        """
        edge = self.decoder.edge
        prompt = question_prompt(edge.tokenizer, question)
        # Beyond the smaller context there would be no consult.
        contexts = contexts_of(edge, self.decoder.cloud)
        longest = max_answer_tokens(len(prompt.ids), self._max_tokens, *contexts)
        return self.decoder.stream(prompt, max_tokens=longest, budget=budget, follow=follow)

    def ask(self, question: Question) -> Answer:
        with asking(question), self.stream(question) as events:
            return collect(events)

    def answer(self, question: Question) -> Outcome:
        return outcome_of(question, self.ask(question))


class AsServed:
    """A system that works as `edgewise serve` does: all answers share a budget of cloud tokens.

    The budget starts at the level that `last`, an earlier run's last outcome, has left; None: at
    its initial one. Several threads may call `answer` at a time. Call `settle` for each outcome.
    """

    def __init__(self, decoder: Decoder, max_tokens: int, last: Outcome | None = None) -> None:
        self._asked = Decoded(decoder, max_tokens)
        level = None if last is None else last.bucket
        self._budgets = SharedBudget() if level is None else SharedBudget(level)
        self._left: dict[str, tuple[Budget, Budget]] = {}

    def answer(self, question: Question) -> Outcome:
        taken = self._budgets.take()
        follow = self._budgets.follow
        with asking(question), self._asked.stream(question, budget=taken, follow=follow) as events:
            answer = collect(events)
            self._left[question.id] = taken, events.budget
        return outcome_of(question, answer)

    def settle(self, outcome: Outcome) -> Outcome:
        """Give what an answer left back to the budget; return the outcome with the new `bucket`.

        Call it in the order in which outcomes are stored.
        """
        self._budgets.settle(*self._left.pop(outcome.question))
        return msgspec.structs.replace(outcome, bucket=self._budgets.level)


def edge_alone(edge: EdgeModel, max_tokens: int, router: Router | None = None) -> Decoded:
    """Return the edge alone; `router` (None: `MaxProb`) only computes `Outcome.uncertainty`."""
    policy = Policy(cloud_share=0.0)
    return Decoded(Decoder(edge, router=router or MaxProb(), policy=policy), max_tokens)


def paired(
    edge: EdgeModel,
    router: Router,
    threshold: float,
    cloud: CloudModel,
    *,
    deadline: float | None = None,
) -> Decoder:
    """Return a decoder that asks the cloud for each token whose score reaches `threshold`.

    `deadline` is in seconds per consult (None: `Policy.deadline_now` chooses it). A failed consult
    raises a `CloudError`: an answer that the edge ends alone would mix two systems in one figure.
    """
    policy = Policy(threshold=threshold, deadline=deadline, speculate=0, on_cloud_error="raise")
    return Decoder(edge, router=router, policy=policy, cloud=cloud)


class CloudAlone:
    """The cloud model alone, asked for the whole answer at once."""

    def __init__(self, cloud: CloudModel, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._cloud, self._tokenizer, self._max_tokens = cloud, tokenizer, max_tokens

    def answer(self, question: Question) -> Outcome:
        prompt = question_prompt(self._tokenizer, question)
        begun = time.monotonic()
        with asking(question), closing(self._cloud.open(prompt)) as session:
            request = ConsultRequest(list(prompt.ids), self._max_tokens, CLOUD_DEADLINE)
            reply = session.ask(request).result()
        ids = reply.ids
        return written(
            question,
            text_of(self._tokenizer, ids),
            len(ids),
            cut=is_cut(self._tokenizer, ids),
            cloud_tokens=len(ids),
            written=reply.billed,
            consults=1,
            cached=reply.cached,
            computed=reply.computed,
            seconds=time.monotonic() - begun,
        )


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts; None if one of them is None."""
    return reduce(metered, counts, 0)


def question_prompt(tokenizer: Tokenizer, question: Question) -> Prompt:
    """Return the `Prompt` (token ids) of a question and of the conversation before it."""
    return prompt_of(tokenizer, question.messages)


def question_ids(tokenizer: Tokenizer, question: Question) -> list[int]:
    return list(question_prompt(tokenizer, question).ids)


def cloud_identity(cloud: CloudModel) -> str:
    """Return the hash of the cloud's weights if it is in this process, else `cloud.identity()`."""
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
    """Return the text of an answer's ids, without end-of-sequence tokens."""
    kept = (token for token in ids if token not in tokenizer.eos_ids)
    return b"".join(map(tokenizer.piece, kept)).decode("utf-8", "replace")


def is_cut(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Whether an answer's token ids lack an end-of-sequence token at their end."""
    return not ids or ids[-1] not in tokenizer.eos_ids


def cloud_share(found: Sequence[Outcome]) -> float:
    """Return the cloud's tokens, wasted ones too, over all output tokens, at most 1."""
    cloud = sum(outcome.cloud_tokens + outcome.wasted_tokens for outcome in found)
    return min(1.0, cloud / max(1, sum(outcome.output_tokens for outcome in found)))


def changed_share(found: Sequence[Outcome]) -> float | None:
    """Return the mean number of the edge's tokens that a consult changed; None without consults."""
    consults = sum(o.consults for o in found)
    return sum(o.changed for o in found) / consults if consults else None


def query_level(edge: Sequence[Outcome], cloud: Sequence[Outcome], share: float) -> list[Outcome]:
    """Return the outcomes of a cascade, computed from those of edge alone and cloud alone.

    As in FrugalGPT (arXiv 2305.05176) the edge answers first. The answers of which it is least sure
    (`Outcome.uncertainty`) are discarded and the cloud's taken, while the cloud's tokens stay
    within `share` (0 to 1) of all. The seconds of such an answer are those of both models.
    """
    chosen = list(edge)
    output, by_cloud = sum(o.output_tokens for o in edge), 0
    for i in sorted(range(len(edge)), key=lambda i: -edge[i].uncertainty):
        output += cloud[i].output_tokens - edge[i].output_tokens
        by_cloud += cloud[i].cloud_tokens
        if by_cloud > share * output:
            break
        chosen[i] = msgspec.structs.replace(
            cloud[i],
            uncertainty=edge[i].uncertainty,
            discarded=edge[i].output_tokens,
            seconds=cloud[i].seconds + edge[i].seconds,
        )
    return chosen
