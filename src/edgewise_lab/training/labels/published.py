"""Labels of this project and of published methods."""

import re
from collections.abc import Generator, Sequence
from typing import Literal, NamedTuple, get_args

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.prompts import Message, prompt_ids
from edgewise_lab.evaluation.systems import text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import (
    AGREES,
    is_right,
    named_choice,
    named_number,
    overlap,
)
from edgewise_lab.rollouts import Continuation, Prefix
from edgewise_lab.training.collect import Text
from edgewise_lab.training.fit import Objective
from edgewise_lab.training.labels.base import Case, Label, Labelling, Rollout, Writer

JUDGE_TOKENS = 8
"""Tokens that the judge has for its answer."""

PASSED = 10
"""Least number of the twelve pairs that must be judged right; a coin does it in 2%."""

_ASKED = """\
Two drafts of an answer begin alike and then differ.

Question:
{question}

Both drafts begin:
{begun}

The first goes on:
{first}

The second goes on:
{second}

Do both say the same here? They may differ in wording, but not in facts, numbers, reasoning or \
what follows from them. Answer with one word, yes or no."""

_ANSWER = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)|[。！？]|\n")
_SUMS = "A shelf holds 12 cups. 5 more are put there. How many are there?"
_CITY = "What is the capital of France?"
_RAIN = "Why should I take an umbrella today?"


class Drafts(NamedTuple):
    """Two ways to go on after `begun`."""

    question: str
    begun: str
    first: str
    second: str


JUDGE_PAIRS: Sequence[tuple[Drafts, bool]] = (
    (Drafts(_SUMS, "", "There are 12 + 5 = 17 cups.", "12 + 5 makes 17 cups."), True),
    (Drafts(_SUMS, "", "There are 12 + 5 = 17 cups.", "There are 12 - 5 = 7 cups."), False),
    (Drafts(_SUMS, "We add 5 to 12.", "That is 17.", "That is 18."), False),
    (Drafts(_SUMS, "We add 5 to 12.", "That is 17.", "It comes to 17."), True),
    (Drafts(_CITY, "", "The capital of France is Paris.", "France's capital is Paris."), True),
    (Drafts(_CITY, "", "The capital of France is Paris.", "The capital of France is Rome."), False),
    (Drafts(_CITY, "France is in Europe.", "Its capital is Paris.", "Paris is its capital."), True),
    (Drafts(_CITY, "France is in Europe.", "Its capital is Paris.", "It has no capital."), False),
    (Drafts(_RAIN, "", "It will rain today.", "Rain is expected today."), True),
    (Drafts(_RAIN, "", "It will rain today.", "It will be dry today."), False),
    (Drafts(_RAIN, "Look outside.", "The sky is full of clouds.", "The sky is cloudy."), True),
    (Drafts(_RAIN, "Look outside.", "The sky is full of clouds.", "The sky is clear."), False),
)


def judge_prompt(tokenizer: Tokenizer, pair: Drafts) -> Rollout:
    """The question to the judge, through the chat template that every prompt goes through."""
    filled = {name: text or "(nothing)" for name, text in pair._asdict().items()}
    text = _ASKED.format(**filled)
    ids = prompt_ids(tokenizer, [Message("user", text)])
    return Rollout("cloud", Prefix(tuple(ids), JUDGE_TOKENS))


def judged_same(tokenizer: Tokenizer, reply: Continuation) -> bool | None:
    """The judge's verdict; None if its answer begins with neither yes nor no."""
    found = _ANSWER.match(text_of(tokenizer, reply.ids).strip())
    return None if found is None else found[1].lower() == "yes"


def check_judge(tokenizer: Tokenizer) -> Generator[list[Rollout], list[Continuation], None]:
    """Twelve pairs on which there are no two opinions.

    Raises `UsageError` for a model that tells fewer than `PASSED` of them rightly.
    """
    replies = yield [judge_prompt(tokenizer, pair) for pair, _ in JUDGE_PAIRS]
    judged = [judged_same(tokenizer, reply) for reply in replies]
    right = sum(one is known for one, (_, known) in zip(judged, JUDGE_PAIRS, strict=True))
    if right < PASSED:
        unclear = judged.count(None)
        raise UsageError(
            f"The cloud model is not a judge: it decides {right} of {len(JUDGE_PAIRS)} plain pairs "
            f"of sentences correctly, and answers {unclear} with neither yes nor no (it begins "
            f"{text_of(tokenizer, replies[0].ids).strip()!r})",
            hint="let the outcome judge, or choose another label",
            setting="judge",
        )


def sentences(begun: str, first: str, second: str) -> tuple[str, str, str]:
    """Splits two texts that begin with `begun`: what precedes the differing sentence, and both.

    A sentence ends with `.`, `!` or `?` before white space, with a line's end or with the text. So
    that does not depend on the vocabulary, and "3.5" is one number.
    """
    shared = len(begun.rstrip("\ufffd"))  # a character that is cut there
    begins = [match.end() for match in _END.finditer(first) if match.end() <= shared]
    start = begins[-1] if begins else 0
    return first[:start].strip(), _one(first, start, shared), _one(second, start, shared)


def _one(text: str, start: int, parted: int) -> str:
    """The sentence that begins at `start` and goes on at `parted`."""
    for match in _END.finditer(text, start):
        if match.end() > parted and text[start : match.end()].strip():
            return text[start : match.end()].strip()
    return text[start:].strip()


class Mismatch(Label):
    """1 where the edge would have written another token than the cloud did. No rollouts.

    What R2R (arXiv 2505.21600) calls "different", before its judge: see `R2R`.
    """

    name = "mismatch"
    described = "the edge's token differs from the cloud's"

    def of(self, case: Case) -> Labelling:
        yield from ()
        differs = set(case.mismatches)
        return [float(at in differs) for at in range(len(case.proposed))]


class Value(Label):
    """1 where the cloud ends right from its own token and wrong from the edge's.

    The cloud is greedy, so its branch is its own answer: only the edge's tokens are rolled out, and
    only where they differ.
    """

    name = "value"
    described = "value of a consult, by the cloud's rollouts"
    writers: frozenset[Writer] = frozenset({"cloud"})

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        if case.sample.right:
            at = case.mismatches
            kept = yield from case.right("cloud", [(i, case.proposed[i]) for i in at])
            for i, right in zip(at, kept, strict=True):
                values[i] = float(not right)
        return values


class Final(Label):
    """How much the end of the cloud's answer changes if it contains the edge's token.

    The cloud goes on from the edge's token; a choice or a number is the same or is not, of other
    answers it is the part of the content words that only one has. Nobody need know what is right.
    """

    name = "final"
    described = "how far the cloud's own answer changes after the edge's token"
    writers: frozenset[Writer] = frozenset({"cloud"})

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        written = yield from case.branches("cloud", [(i, case.proposed[i]) for i in at])
        own = text_of(case.tokenizer, case.sample.ids)
        for i, ids in zip(at, written, strict=True):
            values[i] = self.difference(case.question, own, text_of(case.tokenizer, ids))
        return values

    def difference(self, question: Question, one: str, other: str) -> float:
        """Returns 0 for the same conclusion, up to 1."""
        if question.check in ("choice", "number"):
            return float(not same_end(question, one, other))
        return 1.0 - overlap(question, one, other)


class Rescue(Label):
    """1 where the edge's own answer ends wrong, and right once the cloud has written this token.

    The edge goes on after the cloud's token, as it does in use, from texts that it writes in use.
    The cloud writes no answers: it reads each of the edge's once, and the edge is rolled out where
    the cloud would have written another token, of wrong answers alone.
    """

    name = "rescue"
    described = "the cloud's token turns the edge's own wrong answer into a right one"
    text: Text = "own"
    writers: frozenset[Writer] = frozenset({"edge"})

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        if not case.sample.right:
            cloud, ids = case.sample.cloud, case.sample.ids
            at = [i for i, token in enumerate(cloud) if token != ids[i]]
            right = yield from case.right("edge", [(i, cloud[i]) for i in at])
            for i, value in zip(at, right, strict=True):
                values[i] = float(value)
        return values


_BY: tuple[Literal["edge", "pair"], ...] = ("edge", "pair")


class Citer(Label):
    """CITER's preference (arXiv 2502.01976), along the reference that comes with a question.

    As published: 0 where the edge would write the reference's token, else 1 where the cloud would.
    Where both would write another, each branch is rolled out to its end, and the cloud is preferred
    where only its branch ends right. In the first round the edge goes on from both branches, in
    the second the pair under the router of the first; that changes nothing but these tokens. The
    router is fitted by cross-entropy to what is preferred, and its threshold sets the share.

    Where both branches end alike the cheaper one is preferred, the edge's; the published code rolls
    out the edge's branch alone, and prefers the cloud where that ends wrong. Not as published: the
    pair of the second round asks at the threshold that was calibrated for a share of 5% (there: a
    confidence of 0.95); the router's inputs and width are those that are asked for (there: the
    hidden state alone, layers of 2h and h); the end token is no part of a reference.
    """

    text: Text = "reference"
    options = ("rounds",)

    def __init__(self, rollouts_by: Literal["edge", "pair"] = "edge") -> None:
        self.name = f"citer-{rollouts_by}"
        self.described = f"CITER's preference, both branches rolled out by the {rollouts_by}"
        self.writers: frozenset[Writer] = frozenset({"cloud", rollouts_by})
        self._by: Writer = rollouts_by

    @classmethod
    def rounds(cls, **options: int) -> list[Label]:
        count = options.get("rounds", len(_BY))
        if not 1 <= count <= len(_BY):
            raise UsageError(f"The rounds must be 1 or {len(_BY)}, not {count}.", setting="rounds")
        return [cls(writer) for writer in _BY[:count]]

    def of(self, case: Case) -> Labelling:
        values = [0.0] * len(case.proposed)
        at, ids = case.mismatches, case.sample.ids
        prompt = case.sample.prompt
        replies = yield [Rollout("cloud", Prefix((*prompt, *ids[:i]), 1)) for i in at]
        cloud = {i: reply.ids[0] for i, reply in zip(at, replies, strict=True)}
        both = [i for i in at if cloud[i] not in (ids[i], case.proposed[i])]
        branches = [(i, case.proposed[i]) for i in both] + [(i, cloud[i]) for i in both]
        right = yield from case.right(self._by, branches)
        for i in at:
            values[i] = float(cloud[i] == ids[i])
        for i, edge, other in zip(both, right[: len(both)], right[len(both) :], strict=True):
            values[i] = float(other and not edge)
        return values


Judge = Literal["cloud", "outcome"]

LONGEST = 64
"""Tokens after which a sentence is taken as it stands."""


class R2R(Final):
    """R2R's divergence (arXiv 2505.21600), along the cloud's greedy answer.

    As published: 0 where the edge would write the same token; where it would not, the cloud goes on
    from the edge's token to the end of the sentence, and a judge compares that with the cloud's
    own sentence: 0 where the difference is neutral, 1 where the two diverge. Fitted by
    cross-entropy in which both classes weigh alike.

    Not as published: the judge is the cloud model itself (there: a third, larger one), asked with
    a prompt of our own; it may be the `outcome` instead, where the cloud goes on to the end of the
    answer and the two diverge where its conclusions do. A judge's answer that is neither yes nor
    no counts as divergent. A sentence ends by its text, not by a list of tokens.
    """

    objective: Objective = "balanced-cross-entropy"
    options = ("judge",)

    def __init__(self, judge: Judge = "cloud") -> None:
        if judge not in get_args(Judge):
            raise UsageError(
                f"There is no judge {judge!r}",
                hint=f"it is {' or '.join(get_args(Judge))}",
                setting="judge",
            )
        self.name = "r2r" if judge == "cloud" else f"r2r-{judge}"
        self.described = f"R2R's divergence from the cloud's answer, judged by the {judge}"
        self._judge, self._tried = judge, False

    def of(self, case: Case) -> Labelling:
        return self._judged(case) if self._judge == "cloud" else super().of(case)

    def difference(self, question: Question, one: str, other: str) -> float:
        return float(not same_end(question, one, other))

    def _judged(self, case: Case) -> Labelling:
        if not self._tried:
            self._tried = True
            yield from check_judge(case.tokenizer)
        values = [0.0] * len(case.proposed)
        at = case.mismatches
        branches = [(i, case.proposed[i]) for i in at]
        written = yield from case.branches("cloud", branches, most=LONGEST)
        pairs = {i: _parted(case, i, ids) for i, ids in zip(at, written, strict=True)}
        pairs = {i: pair for i, pair in pairs.items() if pair.first != pair.second}
        replies = yield [judge_prompt(case.tokenizer, pair) for pair in pairs.values()]
        for i, reply in zip(pairs, replies, strict=True):
            values[i] = float(judged_same(case.tokenizer, reply) is not True)
        return values


def _parted(case: Case, at: int, other: Sequence[int]) -> Drafts:
    """The sentence that parts at `at`, as the cloud wrote it and as `other` ids have it."""
    texts = (case.sample.ids[:at], case.sample.ids[: at + 1 + LONGEST], other)
    begun, first, second = (text_of(case.tokenizer, ids) for ids in texts)
    return Drafts(case.question.text, *sentences(begun, first, second))


def same_end(question: Question, one: str, other: str) -> bool:
    """Whether two answers conclude alike, be that right or wrong."""
    match question.check:
        case "choice":
            return named_choice(question, one) == named_choice(question, other)
        case "number":
            return named_number(question, one) == named_number(question, other)
        case "exact":
            return one.strip() == other.strip()
        case "contains" | "regex" | "code" | "json" | "read":
            return is_right(question, one) == is_right(question, other)
        case "words":
            return overlap(question, one, other) >= AGREES


class CoLlm(Label):
    """The deferral head of Co-LLM (arXiv 2403.03870): linear, the edge model's weights frozen.

    As published: the marginal likelihood of the text under both models, along the reference that
    comes with a question, and what the head starts from, cross-entropy with positives eight times
    as heavy. These values are its labels: 1 where the cloud would write the text's token and the
    edge would not.

    Not as published: the edge model is not trained along with the head; the head reads the inputs
    that are asked for (there: the hidden state alone); the end token is no part of a reference;
    and a task without references is learnt from the cloud's own answers, where the cloud is right
    at every token.
    """

    name = "co-llm"
    described = "marginal likelihood of the text under both models"
    text: Text = "target"
    objective: Objective = "marginal-likelihood"
    hidden = 0

    def of(self, case: Case) -> Labelling:
        yield from ()
        ids = case.sample.ids
        cloud = case.sample.cloud or ids
        both = zip(ids, case.proposed, cloud, strict=True)
        return [float(edge != token == other) for token, edge, other in both]
