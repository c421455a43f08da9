"""Many greedy continuations at once: one llama.cpp sequence each, one decode for all of them."""

from collections.abc import Sequence

from edgewise.edge.binding import llama_cpp
from edgewise.edge.llamacpp import BATCH, LlamaModel
from edgewise.errors import ContextOverflow, ModelError

WIDTH = 32
"""Sequences that are decoded together."""


class Rollouts:
    """Continues up to `width` sequences of ids together, in a context of its own."""

    def __init__(self, model: LlamaModel, width: int = WIDTH) -> None:
        self.width = width
        self._model = model
        self._context = model.new_context(width)
        self._memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_set_embeddings(self._context, False)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def greedy(self, prefixes: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """What the model writes after each prefix: at most `max_tokens` ids, end tokens included.

        Raises `ContextOverflow` for a prefix that leaves no room.
        """
        written: list[list[int]] = []
        for start in range(0, len(prefixes), self.width):
            written += self._together(prefixes[start : start + self.width], max_tokens)
        return written

    def _together(self, prefixes: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        llama_cpp.llama_memory_clear(self._memory, True)
        written = [[self._prefill(i, prefix, max_tokens)] for i, prefix in enumerate(prefixes)]
        while running := [i for i, ids in enumerate(written) if not self._ended(ids, max_tokens)]:
            ends = [len(prefixes[i]) + len(written[i]) - 1 for i in running]
            following = self._decode(
                [(i, end, written[i][-1]) for i, end in zip(running, ends, strict=True)]
            )
            for i, token in zip(running, following, strict=True):
                written[i].append(token)
        return written

    def _ended(self, ids: Sequence[int], max_tokens: int) -> bool:
        return len(ids) == max_tokens or ids[-1] in self._model.tokenizer.eos_ids

    def _prefill(self, sequence: int, prefix: Sequence[int], max_tokens: int) -> int:
        if len(prefix) + max_tokens > self._model.context:
            raise ContextOverflow(
                f"{len(prefix)} tokens leave no room for {max_tokens} more in the context of "
                f"{self._model.context}; raise --ctx."
            )
        token = 0
        for start in range(0, len(prefix), self._room):
            part = prefix[start : start + self._room]
            rows = [(sequence, start + offset, id) for offset, id in enumerate(part)]
            token = self._decode(rows, last_only=True)[-1]
        return token

    @property
    def _room(self) -> int:
        return min(BATCH, self._model.context)

    def _decode(
        self, rows: Sequence[tuple[int, int, int]], *, last_only: bool = False
    ) -> list[int]:
        """One decode of (sequence, position, id) rows; the likeliest next id of each row wanted."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (sequence, position, token) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = not last_only or index == len(rows) - 1
        code = llama_cpp.llama_decode(self._context, batch)
        if code != 0:
            raise ModelError(
                f"llama.cpp could not decode {len(rows)} sequences together (code {code}); lower "
                "--ctx if memory is short."
            )
        wanted = [len(rows) - 1] if last_only else range(len(rows))
        return [self._model.likeliest(self._context, index) for index in wanted]
