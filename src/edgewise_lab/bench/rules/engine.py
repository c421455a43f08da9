"""Decodes many answers together, each as a row of a batch and by its own rule.

A rule decides which tokens the cloud writes. Both models read every token: one forward pass of each
serves rules that route and rules that verify. Edge tokens that a rule rolls back stay in the KV
caches, and are masked.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Tokenizer
from edgewise_lab.bench.rules.models import RowModel, Tensor, padded
from edgewise_lab.bench.rules.rule import MEMORY, WINDOW, Rule, RuleColumns, Seen, columns_of, look

ROWS_ON_GPU, ROWS_ON_CPU = 512, 32
"""Default number of rows in a batch: 512 rows of 700 ids take 14 GB with a 0.5B and a 1.5B."""

COMPACTED = 0.85
"""Finished rows are removed from the batch once at most this fraction of it is unfinished."""

_EVERY = 16
"""Steps after which unfinished rows are counted."""


class RowAnswer(NamedTuple):
    """An answer's ids [n]; for each, whether the cloud wrote it, and the signal of its `Rule`."""

    ids: NDArray[np.int64]
    by_cloud: NDArray[np.bool_]
    signals: NDArray[np.float32]


Asked = tuple[int, Rule, float]
"""An answer to decode: index of a prompt, a rule, and the rule's threshold."""


class RowEngine:
    """Decodes a batch of answers (rows) with an edge and a cloud model of one vocabulary."""

    def __init__(self, edge: RowModel, cloud: RowModel, tokenizer: Tokenizer) -> None:
        self.torch: Any = edge.torch
        self.models = (edge, cloud)
        self.device = edge.device
        self._ends = self.torch.tensor(sorted(tokenizer.eos_ids), device=self.device)
        pieces = [tokenizer.piece(token) for token in range(tokenizer.size)]
        # Ids beyond the tokenizer's are padding, which no model writes.
        self.begins = self.torch.tensor(
            [not piece[:1].isalnum() and piece[:1] < b"\x80" for piece in pieces],
            device=self.device,
        )

    def ended(self, ids: Tensor) -> Tensor:
        return self.torch.isin(ids, self._ends)

    def answers(
        self, prompts: Sequence[Sequence[int]], rooms: Sequence[int], asked: Sequence[Asked]
    ) -> list[RowAnswer]:
        """Return an answer for each of `asked` (prompt's index, rule, threshold), in one batch.

        `prompts` are token ids; an answer to `prompts[i]` has at most `rooms[i]` tokens.
        """
        with self.torch.inference_mode():
            rows = _Rows(self, prompts, rooms, asked)
            while rows.step():
                pass
            return rows.answers()

    def in_batches(
        self,
        prompts: Sequence[Sequence[int]],
        rooms: Sequence[int],
        asked: Sequence[Asked],
        rows: int | None = None,
    ) -> Iterator[list[RowAnswer]]:
        """Yield what `answers` returns, in the order of `asked`: a list for each batch.

        A batch has at most `rows` answers: by default `ROWS_ON_GPU` (512) or `ROWS_ON_CPU` (32).
        """
        size = rows or (ROWS_ON_GPU if self.device.type != "cpu" else ROWS_ON_CPU)
        for begin in range(0, len(asked), size):
            part = asked[begin : begin + size]
            used = sorted({one for one, _, _ in part})
            own = [(used.index(one), rule, threshold) for one, rule, threshold in part]
            few = [prompts[one] for one in used], [rooms[one] for one in used]
            yield self.answers(*few, own)


class _Rows:
    """A batch: the ids that all its rows have written, and the state of the unfinished ones."""

    def __init__(
        self,
        engine: RowEngine,
        prompts: Sequence[Sequence[int]],
        rooms: Sequence[int],
        asked: Sequence[Asked],
    ) -> None:
        self._torch, device = engine.torch, engine.device
        self._engine, make = engine, self._torch.tensor
        self._of = self._torch.arange(len(asked), device=device)
        prompt = make([one for one, _, _ in asked], device=device)
        self._rules = columns_of(self._torch, [each[1:] for each in asked], device)
        ids, mask = padded(self._torch, prompts, device)
        self._logits = [model.begin(ids, mask, prompt) for model in engine.models]
        self._mask = mask[prompt]
        self._start = self._mask.sum(1)
        self._room = make(rooms, device=device)[prompt]
        shape = len(asked), max(rooms)
        # Drawn by the prompt, so that they do not depend on the batch.
        draws = [np.random.default_rng(list(one)).random(shape[1], np.float32) for one in prompts]
        self._random = make(np.stack(draws), device=device)[prompt]
        self._ids = self._torch.zeros(shape, dtype=self._torch.long, device=device)
        self._by_cloud = self._torch.zeros(shape, dtype=self._torch.bool, device=device)
        self._signals = self._torch.zeros(shape, device=device)
        zeros = self._start * 0
        self._count, self._agreed, self._other = zeros, zeros, zeros
        self._pending = zeros - 1
        self._held, self._done = zeros > 0, zeros > 0
        self._mean = zeros.float()
        self._sizes = zeros.clone()
        self._steps = 0

    def step(self) -> bool:
        """Let each row write a token; return whether any row is unfinished."""
        at = self._count.clamp(max=self._ids.shape[1] - 1)
        random = self._random.gather(1, at[:, None])[:, 0]
        seen = look(self._torch, self._logits, self._mean, random)
        wants, signals = self._rules.wants(self._torch, seen, self._count == 0)
        token, by_cloud, back = self._chosen(seen, wants)
        taken = self._count - self._pending
        columns = self._torch.arange(self._mask.shape[1], device=token.device)
        hidden = back[:, None] & (columns >= self._mask.shape[1] - taken[:, None])
        self._mask = self._mask.masked_fill(hidden, 0)
        self._count = self._torch.where(back, self._pending, self._count)
        self._pending = self._pending.masked_fill(back, -1)
        self._write(token, by_cloud, signals, back)
        self._mean = self._mean + (-seen.cloud_p - self._mean) / self._count.clamp(1, MEMORY)
        self._steps += 1
        if not self._go_on():
            return False
        token = token[self._kept] if self._kept is not None else token
        self._mask = self._torch.cat([self._mask, self._mask[:, :1] * 0 + 1], 1)
        places = (self._start + self._count - 1)[:, None]
        self._logits = [
            model.step(token[:, None], self._mask, places) for model in self._engine.models
        ]
        return True

    def _chosen(self, seen: Seen, wants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's token, if it is the cloud's, and if its window is rolled back."""
        where, waiting = self._torch.where, self._pending >= 0
        agrees = seen.edge == seen.cloud
        self._agreed = self._agreed + (waiting & agrees)
        back = waiting & ~agrees & ~self._done
        self._pending = self._pending.masked_fill(waiting & (self._agreed == WINDOW), -1)
        self._held &= ~self._engine.begins[seen.cloud]
        wants = (wants & ~waiting) | self._held
        opens = wants & self._rules.window & ~self._engine.ended(seen.edge)
        self._pending = where(opens, self._count, self._pending)
        self._other = where(opens, seen.cloud, self._other)
        self._agreed = self._agreed.masked_fill(opens, 0)
        by_cloud = (wants & ~opens) | back
        token = where(back, self._other, where(by_cloud, seen.cloud, seen.edge))
        self._held = by_cloud & self._rules.word
        return token, by_cloud, back

    def _write(self, token: Tensor, by_cloud: Tensor, signals: Tensor, back: Tensor) -> None:
        live = ~self._done
        of, at = self._of[live], self._count[live]
        self._ids[of, at], self._by_cloud[of, at] = token[live], by_cloud[live]
        # Where a window is rolled back, the token keeps the signal that opened the window.
        told = self._signals[of, at]
        self._signals[of, at] = self._torch.where(back[live], told, signals[live])
        self._count = self._count + live
        self._sizes[self._of] = self._count
        self._done = self._done | self._engine.ended(token) | (self._count >= self._room)

    def _go_on(self) -> bool:
        """Return whether any row is unfinished; now and then, remove finished ones."""
        self._kept = None
        left = int((~self._done).sum())
        if not left or self._steps % _EVERY or left > COMPACTED * len(self._done):
            return left > 0
        self._kept = kept = (~self._done).nonzero()[:, 0]
        for name in _STATE:
            setattr(self, name, getattr(self, name)[kept])
        self._rules = RuleColumns._make(column[kept] for column in self._rules)
        for model in self._engine.models:
            model.keep(kept)
        return True

    def answers(self) -> list[RowAnswer]:
        columns = (self._ids, self._by_cloud, self._signals)
        ids, by_cloud, signals = (column.cpu().numpy() for column in columns)
        return [
            RowAnswer(ids[row, :size], by_cloud[row, :size], signals[row, :size])
            for row, size in enumerate(self._sizes.tolist())
        ]


_STATE = (
    *("_of", "_start", "_room", "_random", "_mask", "_count", "_agreed", "_other", "_pending"),
    *("_held", "_done", "_mean"),
)
