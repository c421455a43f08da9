"""The oracle: what the best router could do with this pair.

It consults exactly where the models differ and it matters. A token of the edge matters when not
even the cloud, going on from it, would end right. The oracle follows the edge as long as the
cloud could still save the answer, takes the cloud's token where it could not any more, and asks
for nothing once the edge gets there alone.
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
    """An answer of the oracle; `consults` are the indices of the cloud's ids."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    consults: tuple[int, ...]
    right: bool
    seconds: float


class _Writer(NamedTuple):
    """A model's session, and where its sequences end: the pair's answer is no longer either."""

    session: EdgeSession
    contexts: tuple[int, ...]


class Oracle:
    """Two models of one vocabulary in this process; answers are greedy and end with a context."""

    def __init__(self, edge: EdgeModel, cloud: EdgeModel, max_tokens: int) -> None:
        self._tokenizer = edge.tokenizer
        self._max_tokens = max_tokens
        self._edge = _Writer(edge.session(), (edge.context,))
        self._cloud = _Writer(cloud.session(), (edge.context, cloud.context))

    def close(self) -> None:
        self._edge.session.close()
        self._cloud.session.close()

    def answer(self, question: Question) -> Outcome:
        """The edge's answer with as many tokens of the cloud's as it needs to be right."""
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
        """The answer's ids, and where it took the cloud's.

        Where the cloud alone is wrong too there is nothing to gain: the edge answers alone.
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
        """The first of `ids` after which the cloud would end wrong, and the cloud's token there.

        The cloud, going on from any earlier one, ends right: so it does after its own token.
        None where a near tie of logits came out otherwise than before, in another batch, or
        where that is beyond the cloud's context.
        """
        for at in range(start, min(len(ids), self._room(self._cloud, prompt))):
            written = self._next(self._cloud, prompt, ids[:at])
            if written != ids[at] and not right(self._greedy(self._cloud, prompt, ids[: at + 1])):
                return at, written
        return None

    def _greedy(self, writer: _Writer, prompt: list[int], begun: list[int]) -> list[int]:
        """`begun` and what the model writes after it."""
        ids = list(begun)
        longest = self._room(writer, prompt)
        while len(ids) < longest and not (ids and ids[-1] in self._tokenizer.eos_ids):
            ids.append(self._next(writer, prompt, ids))
        return ids

    def _room(self, writer: _Writer, prompt: list[int]) -> int:
        return systems.max_answer_tokens(len(prompt), self._max_tokens, *writer.contexts)

    def _next(self, writer: _Writer, prompt: list[int], ids: Sequence[int]) -> int:
        """The likeliest id; `open` computes only what the KV cache does not hold."""
        writer.session.open([*prompt, *ids])
        return writer.session.step().proposed
