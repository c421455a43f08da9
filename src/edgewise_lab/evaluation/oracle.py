"""The oracle: a system that knows the right answers and shows what the best router could do.

It takes the cloud model's token only where the models differ and the edge model's token would spoil
the answer: even if the cloud wrote all that follows, the answer would be wrong. Everywhere else it
keeps the edge's token. Once the edge alone would end with a right answer, it asks no more.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgewise.edge.base import EdgeModel, EdgeSession
from edgewise_lab.evaluation import systems
from edgewise_lab.evaluation.systems import Outcome, is_cut, question_ids, text_of, written
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_right


class Walk(NamedTuple):
    """An answer of the oracle to one question.

    `prompt` and `ids` are the token ids of prompt and answer, `consults` the indices in `ids` of
    the tokens that the cloud wrote. `seconds` is how long it took.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    consults: tuple[int, ...]
    right: bool
    seconds: float


class _Writer(NamedTuple):
    """A model's session, and the context sizes in tokens that limit what it writes."""

    session: EdgeSession
    contexts: tuple[int, ...]


class Oracle:
    """The oracle for two models of one vocabulary, both in this process; answers are greedy."""

    def __init__(self, edge: EdgeModel, cloud: EdgeModel, max_tokens: int) -> None:
        self._tokenizer = edge.tokenizer
        self._max_tokens = max_tokens
        self._edge = _Writer(edge.session(), (edge.context,))
        self._cloud = _Writer(cloud.session(), (edge.context, cloud.context))

    def close(self) -> None:
        self._edge.session.close()
        self._cloud.session.close()

    def answer(self, question: Question) -> Outcome:
        """Return the graded answer of `trace`: the edge's, with the cloud tokens that it needs."""
        trace = self.trace(question)
        return written(
            question,
            text_of(self._tokenizer, trace.ids),
            len(trace.ids),
            cut=is_cut(self._tokenizer, trace.ids),
            cloud_tokens=len(trace.consults),
            consults=len(trace.consults),
            changed=len(trace.consults),
            seconds=trace.seconds,
        )

    def trace(self, question: Question) -> Walk:
        """Return the oracle's answer as token ids, with the indices of the cloud's tokens.

        If the cloud alone would be wrong, there is nothing to gain, and the edge answers alone.
        """
        begun = time.monotonic()
        prompt = question_ids(self._tokenizer, question)

        def right(ids: Sequence[int]) -> bool:
            return is_right(question, text_of(self._tokenizer, ids))

        ids = self._greedy(self._edge, prompt, [])
        consults: list[int] = []
        if right(self._greedy(self._cloud, prompt, [])):
            while not right(ids):
                start = consults[-1] + 1 if consults else 0
                found = self._beyond_repair(prompt, ids, start, right)
                if found is None:
                    break
                at, token = found
                ids = self._greedy(self._edge, prompt, [*ids[:at], token])
                consults.append(at)
        return Walk(
            tuple(prompt), tuple(ids), tuple(consults), right(ids), time.monotonic() - begun
        )

    def _beyond_repair(
        self, prompt: list[int], ids: list[int], start: int, right: Callable[[Sequence[int]], bool]
    ) -> tuple[int, int] | None:
        """Return the first index in `ids` after which the cloud would end wrong, and its own token.

        Continuing from any earlier index the cloud ends right, and so it does after its own token.
        None if there is no such index: it lies beyond the cloud's context, or a near tie of logits
        was decided differently in another batch.
        """
        for at in range(start, min(len(ids), self._room(self._cloud, prompt))):
            written = self._next(self._cloud, prompt, ids[:at])
            if written != ids[at] and not right(self._greedy(self._cloud, prompt, ids[: at + 1])):
                return at, written
        return None

    def _greedy(self, writer: _Writer, prompt: list[int], begun: list[int]) -> list[int]:
        """Return `begun` followed by the ids that the model writes greedily after it."""
        ids = list(begun)
        longest = self._room(writer, prompt)
        while len(ids) < longest and not (ids and ids[-1] in self._tokenizer.eos_ids):
            ids.append(self._next(writer, prompt, ids))
        return ids

    def _room(self, writer: _Writer, prompt: list[int]) -> int:
        return systems.max_answer_tokens(len(prompt), self._max_tokens, *writer.contexts)

    def _next(self, writer: _Writer, prompt: list[int], ids: Sequence[int]) -> int:
        """Return the likeliest next id; `open` computes only what the KV cache lacks."""
        writer.session.open([*prompt, *ids])
        return writer.session.step().proposed
