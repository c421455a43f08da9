"""The oracle: what the best router could do with this pair.

It consults exactly where the models differ and it matters. A token of the edge matters when not
even the cloud, going on from it, would end right. The oracle follows the edge as long as the
cloud could still save the answer, takes the cloud's token where it could not any more, and asks
for nothing once the edge gets there alone.
"""

from collections.abc import Callable, Sequence

from edgewise.chat import Message, prompt_ids
from edgewise.edge.base import EdgeModel, EdgeSession
from edgewise.evaluation.questions import Question, is_right
from edgewise.evaluation.systems import MAX_TOKENS, Outcome

Judge = Callable[[Sequence[int]], bool]


class Oracle:
    """Two models of one vocabulary in this process; answers are greedy."""

    def __init__(self, edge: EdgeModel, cloud: EdgeModel) -> None:
        self._tokenizer = edge.tokenizer
        self._edge = edge.session()
        self._cloud = cloud.session()

    def close(self) -> None:
        """Give back both sessions."""
        self._edge.close()
        self._cloud.close()

    def answer(self, question: Question) -> Outcome:
        """The edge's answer with as many tokens of the cloud's as it needs to be right.

        Where the cloud alone is wrong too there is nothing to gain: the edge answers alone.
        """
        prompt = prompt_ids(self._tokenizer, [Message("user", question.prompt)])

        def right(ids: Sequence[int]) -> bool:
            return is_right(question, self._text(ids))

        ids = self._greedy(self._edge, prompt, [])
        if right(ids) or not right(self._greedy(self._cloud, prompt, [])):
            return Outcome(question.id, question.family, right(ids), len(ids))
        consults = 0
        while not right(ids):
            at, token = self._beyond_repair(prompt, ids, right)
            ids = self._greedy(self._edge, prompt, [*ids[:at], token])
            consults += 1
        return Outcome(
            question.id,
            question.family,
            right=True,
            output_tokens=len(ids),
            cloud_tokens=consults,
            consults=consults,
            changed=consults,
        )

    def _beyond_repair(self, prompt: list[int], ids: list[int], right: Judge) -> tuple[int, int]:
        """The first of `ids` after which the cloud would end wrong, and the cloud's token there.

        The cloud, going on from any earlier one, ends right: so it does after its own token.
        """
        for at, token in enumerate(ids):
            written = self._next(self._cloud, prompt, ids[:at])
            if written != token:
                kept = ids[: at + 1]
                rest = [] if self._ended(kept) else self._greedy(self._cloud, prompt, kept)
                if not right(rest or kept):
                    return at, written
        raise AssertionError("a wrong answer has a token that made it wrong")

    def _greedy(self, session: EdgeSession, prompt: list[int], begun: list[int]) -> list[int]:
        """`begun` and what the model writes after it."""
        ids = list(begun)
        while not self._ended(ids):
            ids.append(self._next(session, prompt, ids))
        return ids

    def _ended(self, ids: Sequence[int]) -> bool:
        return len(ids) == MAX_TOKENS or (len(ids) > 0 and ids[-1] in self._tokenizer.eos_ids)

    def _next(self, session: EdgeSession, prompt: list[int], ids: Sequence[int]) -> int:
        """The likeliest id; `open` computes only what the KV cache does not hold."""
        session.open([*prompt, *ids])
        return session.step().proposed

    def _text(self, ids: Sequence[int]) -> str:
        kept = (i for i in ids if i not in self._tokenizer.eos_ids)
        return b"".join(map(self._tokenizer.piece, kept)).decode("utf-8", "replace")
