"""Rollouts on llama.cpp: one sequence each, one decode for all of them."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from edgewise.edge.binding import llama_cpp
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp import BATCH, LlamaModel
from edgewise.edge.step import LogitsStep
from edgewise.errors import ContextOverflow, ModelError
from edgewise.rollouts.base import Continuation, Done, Prefix, ignore

WIDTH = 32
"""Sequences that are decoded together."""

_CELLS = 1 << 15
"""Bound on the KV cache of all sequences together, ids."""


class LlamaRollouts:
    """Implements `Rollouts` in a context of its own; a sequence that ends makes room for the next.

    Neighbouring prefixes that begin alike run one after the other in one slot, which computes only
    what it does not hold yet. Logits of a row depend a little on what else is in its batch, so a
    near tie may come out otherwise than in a session.
    """

    def __init__(self, model: LlamaModel, width: int = WIDTH) -> None:
        self._model = model
        # llama.cpp wants room for an id of each sequence in one decode.
        self._width = max(1, min(width, _CELLS // model.context, model.context))
        self._context = model.new_context(self._width)
        self._memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_set_embeddings(self._context, False)
        self._room = min(BATCH, model.context)
        self._batch = llama_cpp.llama_batch_init(self._room, 0, 1)
        self._held: list[list[int]] = [[] for _ in range(self._width)]
        self._buffer = np.empty(model.tokenizer.size, np.float32)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        """Raises `ContextOverflow` for a prefix that leaves no room."""
        for prefix in prefixes:
            self._check(prefix)
        waiting = self._shared_out(prefixes)
        running: dict[int, _Sequence] = {}
        written: dict[int, Continuation] = {}
        while len(written) < len(prefixes):
            for slot, queue in enumerate(waiting):
                if slot not in running and (queue or (queue := max(waiting, key=len))):
                    running[slot] = self._begin(slot, *queue.popleft())
            for slot in self._decode(running):
                ended = running.pop(slot)
                written[ended.index] = ended.continuation
                done(ended.index, ended.continuation)
        return [written[index] for index in range(len(prefixes))]

    def _check(self, prefix: Prefix) -> None:
        if len(prefix.ids) + prefix.n > self._model.context:
            raise ContextOverflow(
                f"{len(prefix.ids)} tokens leave no room for {prefix.n} more in the context of "
                f"{self._model.context}; raise --ctx."
            )

    def _shared_out(self, prefixes: Sequence[Prefix]) -> list[deque[tuple[int, Prefix]]]:
        """A queue of neighbours for each slot; one that runs out takes from the longest."""
        queues: list[deque[tuple[int, Prefix]]] = [deque() for _ in range(self._width)]
        for index, prefix in enumerate(prefixes):
            queues[index * self._width // len(prefixes)].append((index, prefix))
        return queues

    def _begin(self, slot: int, index: int, prefix: Prefix) -> "_Sequence":
        held = self._held[slot]
        # The last id is computed anew: its logits are wanted.
        shared = min(common_prefix(held, prefix.ids), len(prefix.ids) - 1)
        if not llama_cpp.llama_memory_seq_rm(self._memory, slot, shared, -1):
            # A recurrent model cannot forget its last ids only.
            shared = 0
            llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)
        self._held[slot] = held[:shared]
        return _Sequence(index, prefix, shared)

    def _decode(self, running: "dict[int, _Sequence]") -> list[int]:
        """One decode of what is due; returns the slots that have ended."""
        batch, row = self._batch, 0
        asked: list[tuple[int, int]] = []
        for slot, sequence in running.items():
            due = sequence.due[: self._room - row]
            for token in due:
                batch.token[row], batch.pos[row] = token, sequence.computed
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, slot
                batch.logits[row] = False
                sequence.computed += 1
                row += 1
            self._held[slot] += due
            if due and sequence.computed == len(sequence.ids):
                batch.logits[row - 1] = True
                asked.append((slot, row - 1))
        batch.n_tokens = row
        if code := llama_cpp.llama_decode(self._context, batch):
            raise ModelError(
                f"llama.cpp could not decode {row} tokens of {len(running)} sequences together "
                f"(code {code}); lower --ctx if memory is short."
            )
        return [slot for slot, at in asked if self._write(running[slot], at)]

    def _write(self, sequence: "_Sequence", row: int) -> bool:
        """Choose the next id from a row's logits; whether the sequence has ended."""
        model = self._model
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        step = LogitsStep(
            len(sequence.ids),
            np.ctypeslib.as_array(logits, (model.tokenizer.size,)),
            None,
            is_fresh=lambda: True,
            buffer=self._buffer,
        )
        token = sequence.prefix.sampling.choose(step)
        sequence.ids.append(token)
        sequence.logprobs.append(step.logprob(token))
        full = len(sequence.logprobs) == sequence.prefix.n
        return full or token in model.tokenizer.eos_ids


class _Sequence:
    """A prefix, and what has been computed and written of it."""

    def __init__(self, index: int, prefix: Prefix, computed: int) -> None:
        self.index = index
        self.prefix = prefix
        self.ids = list(prefix.ids)
        self.logprobs: list[float] = []
        self.computed = computed

    @property
    def due(self) -> list[int]:
        """Ids not yet computed."""
        return self.ids[self.computed :]

    @property
    def continuation(self) -> Continuation:
        return Continuation(tuple(self.ids[len(self.prefix.ids) :]), tuple(self.logprobs))
