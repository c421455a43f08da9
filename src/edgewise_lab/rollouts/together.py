"""Rollouts over sequences that are decoded together: one each, and one that ends makes room."""

from collections import deque
from collections.abc import Sequence

from edgewise.edge.base import Chunk, EdgeModel, Sequences, Step
from edgewise.edge.kv import common_prefix
from edgewise.errors import ContextOverflow
from edgewise_lab.rollouts.base import Continuation, Done, Prefix, ignore


class Together:
    """Implements `Rollouts` over a model's `Sequences`, which `close` frees.

    Neighbouring prefixes that begin alike run one after the other in one sequence, which computes
    only what it does not hold yet.
    """

    def __init__(self, model: EdgeModel, sequences: Sequences) -> None:
        self._context, self._eos_ids = model.context, model.tokenizer.eos_ids
        self._sequences = sequences
        self._held: list[list[int]] = [[] for _ in range(sequences.width)]

    def close(self) -> None:
        self._sequences.close()

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        """Raises `ContextOverflow` for a prefix that does not fit."""
        for prefix in prefixes:
            self._check(prefix)
        waiting = self._shared_out(prefixes)
        running: dict[int, _Rollout] = {}
        written: dict[int, Continuation] = {}
        while len(written) < len(prefixes):
            for at, queue in enumerate(waiting):
                if at not in running and (queue or (queue := max(waiting, key=len))):
                    running[at] = self._begin(at, *queue.popleft())
            for at in self._decode(running):
                ended = running.pop(at)
                written[ended.index] = ended.continuation
                done(ended.index, ended.continuation)
        return [written[index] for index in range(len(prefixes))]

    def _check(self, prefix: Prefix) -> None:
        if len(prefix.ids) > self._context:
            raise ContextOverflow(
                f"{len(prefix.ids)} tokens do not fit in the context of {self._context}",
                hint="raise the context",
                setting="ctx",
            )

    def _shared_out(self, prefixes: Sequence[Prefix]) -> list[deque[tuple[int, Prefix]]]:
        """A queue of neighbours for each sequence; one that runs out takes from the longest."""
        width = self._sequences.width
        queues: list[deque[tuple[int, Prefix]]] = [deque() for _ in range(width)]
        for index, prefix in enumerate(prefixes):
            queues[index * width // len(prefixes)].append((index, prefix))
        return queues

    def _begin(self, at: int, index: int, prefix: Prefix) -> "_Rollout":
        held = self._held[at]
        # The last id is computed anew: its logits are wanted.
        shared = min(common_prefix(held, prefix.ids), len(prefix.ids) - 1)
        if shared < len(held):
            shared = self._sequences.forget(at, shared)
            del held[shared:]
        return _Rollout(index, prefix, shared)

    def _decode(self, running: "dict[int, _Rollout]") -> list[int]:
        """One pass over what is due; returns the sequences that have ended."""
        room = self._sequences.room
        chunks: list[Chunk] = []
        for at, rollout in running.items():
            due = rollout.ids[rollout.computed :][:room]
            if due:
                end = rollout.computed + len(due)
                chunks.append(Chunk(at, rollout.computed, due, end == len(rollout.ids)))
                room -= len(due)
        steps = iter(self._sequences.run(chunks))
        ended: list[int] = []
        for at, _, ids, output in chunks:
            self._held[at] += ids
            running[at].computed += len(ids)
            if output and self._write(running[at], next(steps)):
                ended.append(at)
        return ended

    def _write(self, rollout: "_Rollout", step: Step) -> bool:
        """Choose the next id; whether the rollout has ended."""
        token = rollout.prefix.sampling.choose(step)
        rollout.ids.append(token)
        rollout.logprobs.append(step.logprob(token))
        # Nothing is computed after the last id, which may stand behind the context.
        full = len(rollout.logprobs) == rollout.prefix.n or len(rollout.ids) > self._context
        return full or token in self._eos_ids


class _Rollout:
    """A prefix, and what has been computed and written of it."""

    def __init__(self, index: int, prefix: Prefix, computed: int) -> None:
        self.index = index
        self.prefix = prefix
        self.ids = list(prefix.ids)
        self.logprobs: list[float] = []
        self.computed = computed

    @property
    def continuation(self) -> Continuation:
        return Continuation(tuple(self.ids[len(self.prefix.ids) :]), tuple(self.logprobs))
