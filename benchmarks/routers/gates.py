"""Routers of the comparison alone: what sees no model state, and entropy's near relations.

A set of questions on which a router that sees only words, places or a rule does well measures
where its frames put the answer, not what the edge knows. These are the gates: the set is good
where they fail. They are given which ids were written, which a product's router is not.
"""

import hashlib
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.routers.tree import Scorer
from edgewise.edge.base import Floats, Ids, Needs, Step, Tokenizer
from edgewise.routers.base import Router
from edgewise.routers.untrained import Entropy
from edgewise_lab.training.fit import Data, Recipe, held_out, import_torch

SEEN = 3
"""How many written tokens the n-gram router sees."""

_TIES = 1e-4
_WIDTH = 64


class Plain(Scorer):
    """A router that does not look at what was written."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def score(self, step: Step, written: Sequence[int]) -> float:
        return self._router.score(step)


class TopEntropy:
    """Shannon entropy of the k likeliest tokens, renormalised, over its greatest value log k."""

    needs, top = Needs.TOP, 10

    def score(self, step: Step) -> float:
        """From 0 (certain) to 1 (k equal tokens)."""
        _, logits = step.top(self.top)
        weights = np.exp(logits.astype(np.float64) - logits[0])
        p = weights / weights.sum()
        entropy = -float(p @ np.log(np.maximum(p, 1e-300)))
        return min(1.0, max(0.0, entropy / math.log(len(p))))


class DigitRule(Scorer):
    """Entropy, times three where a digit is about to be written after an equals sign."""

    _SUM = re.compile(rb"=\s*\d+\Z")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._piece = tokenizer.piece
        self._entropy = Entropy()

    def score(self, step: Step, written: Sequence[int]) -> float:
        tail = b"".join(map(self._piece, (*written[-6:], step.proposed)))
        weight = 3.0 if self._SUM.search(tail) else 1.0
        # A third of it: the order counts, and a score ends at 1.
        return weight * self._entropy.score(step) / 3.0


class Position(Scorer):
    """How often a consult was worth it at this place of an answer; sees nothing else."""

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        self._means = tensors["means"]

    @staticmethod
    def fit(values: Sequence[Sequence[float]]) -> dict[str, Floats]:
        """The mean of the texts' values at each place; 0 after the longest."""
        places = zip_longest(*values)
        means = [fmean(v for v in place if v is not None) for place in places]
        return {"means": np.array([*means, 0.0], np.float32)}

    def score(self, step: Step, written: Sequence[int]) -> float:
        at = min(len(written), len(self._means) - 1)
        return untied(float(self._means[at]), written)


class ThreeTokens(Scorer):
    """A perceptron over the ids of the last three written tokens, an embedding for each place.

    sigmoid(w relu(V relu(E_1[a] + E_2[b] + E_3[c] + d) + v) + u). Nothing of the model's state.
    """

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        self._tensors = tensors
        self._known: dict[tuple[int, ...], float] = {}

    @staticmethod
    def fit(
        texts: Sequence[Sequence[int]],
        values: Sequence[Sequence[float]],
        vocabulary: int,
        recipe: Recipe,
    ) -> dict[str, Floats]:
        """Cross-entropy against the values; the epoch that is best on held-out texts is kept.

        Raises `UsageError` where torch is missing, or the texts are too few.
        """
        torch = import_torch()
        torch.manual_seed(recipe.seed)
        data = _rows(texts, values)
        seen = np.concatenate([_contexts(ids, vocabulary) for ids in texts])
        x, y = torch.from_numpy(seen), torch.from_numpy(data.labels)
        apart = held_out(data, recipe.held_out, recipe.seed)
        kept, checked = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~apart, apart))
        network = torch.nn.Sequential(
            torch.nn.EmbeddingBag(SEEN * (vocabulary + 1), _WIDTH, mode="sum"),
            torch.nn.ReLU(),
            torch.nn.Linear(_WIDTH, _WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(_WIDTH, 1),
        )
        loss_of = torch.nn.BCEWithLogitsLoss()
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay
        )
        best, found = math.inf, dict[str, Floats]()
        for _ in range(recipe.epochs):
            for rows in _batches(torch, kept, recipe.batch):
                optimizer.zero_grad()
                loss_of(network(x[rows]).squeeze(1), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                loss = float(loss_of(network(x[checked]).squeeze(1), y[checked]))
            if loss < best:
                best = loss
                found = {name: t.numpy().copy() for name, t in network.state_dict().items()}
        return found

    def score(self, step: Step, written: Sequence[int]) -> float:
        context = tuple(written[-SEEN:])
        if context not in self._known:
            self._known[context] = self._computed(context)
        return untied(self._known[context], written)

    def _computed(self, context: Sequence[int]) -> float:
        tensors = self._tensors
        vocabulary = len(tensors["0.weight"]) // SEEN - 1
        rows = _context(context, vocabulary)
        x = np.maximum(tensors["0.weight"][rows].sum(axis=0), 0.0)
        x = np.maximum(tensors["2.weight"] @ x + tensors["2.bias"], 0.0)
        logit = float((tensors["4.weight"] @ x + tensors["4.bias"])[0])
        return 0.5 * (1.0 + math.tanh(0.5 * logit))


def untied(score: float, written: Sequence[int]) -> float:
    """The score and a little more, by what was written, so that any share has its threshold.

    The same words stand in many answers: their equal scores would be consulted all or none.
    """
    draw = zlib.crc32(np.asarray(written, np.int32).tobytes()) / 2**32
    return (1 - _TIES) * score + _TIES * draw


def saved(tensors: Mapping[str, Floats], path: Path) -> None:
    """Write a gate's tensors, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(dict(tensors), partial)
    partial.replace(path)


def loaded(path: Path) -> dict[str, Floats]:
    return load_file(path)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _batches(torch: Any, rows: Any, size: int) -> Iterator[Any]:
    yield from rows[torch.randperm(len(rows))].split(size)


def _rows(texts: Sequence[Sequence[int]], values: Sequence[Sequence[float]]) -> Data:
    labels = np.concatenate([np.asarray(known, np.float32) for known in values])
    groups = np.repeat(np.arange(len(texts)), [len(ids) for ids in texts]).astype(np.int32)
    return Data(np.empty((len(labels), 0), np.float32), labels, groups, groups)


def _contexts(ids: Sequence[int], vocabulary: int) -> Ids:
    """int32[n, SEEN]: what the router sees before each of a text's ids."""
    return np.stack([_context(ids[max(0, at - SEEN) : at], vocabulary) for at in range(len(ids))])


def _context(last: Sequence[int], vocabulary: int) -> Ids:
    """int32[SEEN]: rows of the embedding, a table for each place; `vocabulary` stands for none."""
    padded = [vocabulary] * (SEEN - len(last)) + list(last)
    rows = [place * (vocabulary + 1) + token for place, token in enumerate(padded)]
    return np.array(rows, np.int32)
