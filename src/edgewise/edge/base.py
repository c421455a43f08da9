"""The contract of an edge model: a tokenizer, weights, and sessions that hold a KV cache each.

Edge models know nothing of routers, thresholds or HTTP.
"""

from collections.abc import Sequence
from enum import Flag, auto
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgewise.events import Candidate

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


PROBES = (
    "Hello world",
    "The quick brown fox's 12345 jumps, doesn't it?",
    "  two  spaces\n\n\tand a tab",
    "naïve café — 日本語 русский 🙂",
    "def f(x):\n    return x ** 2  # 0.5e-10",
)
"""Strings whose ids show a tokenizer's merges and pre-tokenizer at work."""


class Needs(Flag):
    """Features of a `Step` that must outlive the engine's next decode."""

    NOTHING = 0
    ENTROPY = auto()
    TOP = auto()
    LOGITS = auto()
    HIDDEN = auto()


class Step(Protocol):
    """The model's view of one position: what it would write next, and how sure it is.

    Anything not named in the session's `needs` is a view into the engine, valid until its next
    decode; reading it later raises `StaleStepError`. Logarithms are natural.
    """

    @property
    def position(self) -> int:
        """How many ids stand before the position."""
        ...

    @property
    def proposed(self) -> int:
        """The likeliest id."""
        ...

    @property
    def logits(self) -> Floats:
        """float32[vocabulary], unnormalised."""
        ...

    @property
    def hidden(self) -> Floats:
        """float32[d], the hidden state after the final norm."""
        ...

    @property
    def entropy(self) -> float:
        """Shannon entropy of the next-token distribution, nats."""
        ...

    def top(self, k: int) -> tuple[Ids, Floats]:
        """The k likeliest ids and their logits, best first."""
        ...

    def logprob(self, token: int) -> float:
        """Natural logarithm of the token's probability."""
        ...

    def candidates(self, k: int) -> tuple[Candidate, ...]:
        """The k likeliest ids with their logprobs, best first."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back, and what marks the end of an answer."""

    @property
    def size(self) -> int:
        """Number of ids."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's own Jinja template."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, special tokens written in it become their ids."""
        ...

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a whole prompt: as `encode`, behind a BOS where the model wants one."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for; empty for control tokens."""
        ...

    def fingerprint(self) -> str:
        """A hash of the used ids: equal hashes mean that ids mean the same bytes."""
        ...

    def special_text(self, name: str) -> str:
        """How the special token `bos` or `eos` is written; empty where there is none."""
        ...


class EdgeSession(Protocol):
    """One KV cache. Owned by one thread at a time."""

    @property
    def position(self) -> int:
        """How many ids the session holds, computed and queued."""
        ...

    def open(self, ids: Sequence[int]) -> int:
        """Make `ids` the sequence; returns how many of them the KV cache already held."""
        ...

    def step(self) -> Step:
        """Run whatever is queued (one forward pass) and return the next position."""
        ...

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        """Append `ids` and run them in one batch: one `Step` per id, the position after it."""
        ...

    def extend(self, ids: Sequence[int]) -> None:
        """Queue ids; the next `step` computes them. Raises `ContextOverflow`."""
        ...

    def rewind(self, position: int) -> None:
        """Drop every id from `position` (absolute) on."""
        ...

    def close(self) -> None:
        """Give the session's place in the model back."""
        ...


class EdgeModel(Protocol):
    """Loaded weights. Sessions share them."""

    @property
    def name(self) -> str:
        """What to call the model."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Its vocabulary."""
        ...

    @property
    def context(self) -> int:
        """Longest sequence of a session, ids."""
        ...

    @property
    def hidden_size(self) -> int:
        """d of the hidden state."""
        ...

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> EdgeSession:
        """A new session whose steps keep `needs` (and the `top` likeliest ids)."""
        ...

    def fingerprint(self) -> str:
        """A hash that tells this very build (weights and quantisation) from any other."""
        ...

    def close(self) -> None:
        """Free the weights."""
        ...
