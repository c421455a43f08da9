"""The contract of an edge model: a tokenizer, weights, and sessions that hold a KV cache each.

A new engine inherits from `EdgeModel`; its sessions are `KvSession`s over `Slots` of
the engine's `SequenceCache`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Flag, auto
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.errors import ContextOverflow, StaleStepError, UsageError
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
    TEXT = auto()


class Written(NamedTuple):
    """The ids before a step; the first `prompt` of them are the prompt."""

    ids: Sequence[int]
    prompt: int
    tokenizer: "Tokenizer"


class Step(ABC):
    """The model's prediction of the next id at one position. Logarithms are natural.

    Anything not named in the session's `needs` is a view into the engine, valid until its next
    decode; reading it later raises `StaleStepError`.
    """

    _written: Written | None

    position: int
    """Number of ids before the position."""

    size: int
    """Number of logits."""

    proposed: int
    """The likeliest id."""

    @property
    @abstractmethod
    def logits(self) -> Floats:
        """float32[size], unnormalised."""

    @property
    @abstractmethod
    def hidden(self) -> Floats:
        """float32[d], the hidden state after the final norm."""

    @property
    def written(self) -> Written:
        """The text before the position; only where `needs` names it."""
        if self._written is None:
            raise StaleStepError("This step was computed without its text.")
        return self._written

    @property
    @abstractmethod
    def entropy(self) -> float:
        """Shannon entropy of the next-token distribution, nats."""

    @abstractmethod
    def top(self, k: int) -> tuple[Ids, Floats]:
        """The k likeliest ids and their logits, best first."""

    @abstractmethod
    def logprob(self, token: int) -> float:
        """Natural logarithm of the token's probability."""

    @abstractmethod
    def candidates(self, k: int) -> tuple[Candidate, ...]:
        """The k likeliest ids with their logprobs, best first."""


class Tokenizer(Protocol):
    """Text to ids and back, and what marks the end of an answer."""

    size: int
    """Number of ids."""

    eos_ids: frozenset[int]
    """Every id that ends an answer."""

    @property
    def special(self) -> Mapping[int, str]:
        """Ids that write nothing, such as that of `<|im_end|>`, and their text."""
        ...

    chat_template: str | None
    """The model's own Jinja template. One for tools, where there is one, is `tool_template`."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`. Only with `special` does text make special tokens."""
        ...

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Like `encode`, with a leading BOS if wanted; `special` for what a template made alone."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for; empty for special tokens and for padding."""
        ...

    def special_text(self, name: str) -> str:
        """Text of the special token `bos` or `eos`; empty if there is none."""
        ...


class EdgeSession(ABC):
    """One KV cache and the ids in it. Owned by one thread at a time."""

    def __init__(self, model: "EdgeModel", needs: Needs) -> None:
        """Raises `UsageError` for hidden states that the model's engine lacks."""
        if Needs.HIDDEN in needs and not model.abilities.hidden:
            raise UsageError(
                f"The engine of {model.name!r} gives no hidden states",
                hint="choose a router that reads none, such as entropy",
                setting="router",
            )
        self._name, self._size, self._context = model.name, model.tokenizer.size, model.context
        self._ids: list[int] = []
        self._opened = self._closed = False

    @property
    def position(self) -> int:
        """Number of ids that the session holds, computed and queued."""
        return len(self._ids)

    @property
    def computed(self) -> int:
        """How many of them are computed, as far as the engine tells."""
        return 0

    @abstractmethod
    def open(self, ids: Sequence[int]) -> int:
        """Make `ids` the sequence; returns how many of them the KV cache already held."""

    @abstractmethod
    def step(self) -> Step:
        """Run whatever is queued (one forward pass) and return the next position."""

    @abstractmethod
    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        """Append `ids` and run them in one batch: one `Step` per id, the position after it."""

    def extend(self, ids: Sequence[int]) -> None:
        """Queue ids; the next `step` computes them. Raises `ContextOverflow`."""
        if not self._opened:
            self.open(ids)
            return
        self._require_room(len(self._ids), ids)
        self._ids.extend(ids)

    def rewind(self, position: int) -> None:
        """Drop every id from `position` (absolute) on."""
        self._check_open()
        if not 0 <= position <= len(self._ids):
            raise ValueError(f"cannot rewind to {position}: the session holds {len(self._ids)} ids")
        del self._ids[position:]

    def checkpoint(self, position: int) -> None:  # noqa: B027
        """Announce a possible `rewind(position)`, before any later id is computed.

        Only an engine that rolls back to checkpoints needs it.
        """

    def rest(self) -> None:  # noqa: B027
        """Announce that the next `step` is not near, as while a cloud is waited for.

        An engine that computes several sessions in one pass waits for those that are about to step.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the session's place in the model back."""

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("The session is closed", hint="open a new one")

    def _require_ids(self) -> None:
        if not self._ids:
            self._check_open()
            raise UsageError(
                "A session has no next token before it has ids", hint="open it with a prompt"
            )

    def _require_room(self, before: int, ids: Sequence[int]) -> None:
        """Raise for ids that the vocabulary lacks, and for more than fit after `before` others."""
        self._check_open()
        if ids and not 0 <= min(ids) <= max(ids) < self._size:
            raise UsageError(f"{self._name!r} has ids from 0 to {self._size - 1} only.")
        if before + len(ids) > self._context:
            raise ContextOverflow(
                f"{before + len(ids)} tokens do not fit in the context of {self._context}",
                hint="shorten the prompt or raise the context",
                setting="ctx",
            )


Rewinds = Literal["anywhere", "checkpoints", "no"]


class EdgeAbilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of a model's engine.

    `hidden`: it returns hidden states. `rewinds`: a rollback keeps all ids before its position
    ("anywhere"), those before the last checkpoint ("checkpoints"), or none ("no"); the rest is
    computed again. `batch_logits`: one pass yields the logits of every id in it. `text`: it goes on
    from whole characters only. `slots`: how many sessions may be open at once.
    """

    hidden: bool = True
    rewinds: Rewinds = "anywhere"
    batch_logits: bool = True
    text: bool = False
    slots: int = 1


class EdgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Load options of an edge model; an engine refuses those it cannot honour.

    `context` is in ids a session (None: what suits the model). With `keep_prefixes` a closed
    session's KV cache stays until its slot is needed, for a conversation's next turn. Without, no
    answer depends on an earlier one, not even by a rounding error. Of a server that runs the edge
    model, `model` names one of those it serves, `tokenizer` is where its tokenizer is, if the
    server does not tell, and `key` is sent to it. `sent` is called with its host and each message
    to it, before that leaves.
    """

    context: int | None = None
    threads: int | None = None
    gpu_layers: int | Literal["auto"] = "auto"
    slots: int = 1
    keep_prefixes: bool = False
    model: str | None = None
    tokenizer: str | None = None
    key: str | None = None
    sent: Callable[[str, bytes], None] | None = None


Claim = Literal["own", "shared"]
"""How a folder's files fit an engine: in the form of its own library, or one that others read."""


class EdgeModel(Protocol):
    """Loaded weights. Sessions share them. What has a body here, an engine may leave out.

    A class that opens folders says which: `claims(ModelFiles) -> Claim | None`, and `reads`.
    """

    name: str
    """Display name of the model."""

    context: int
    """Longest sequence of a session, ids."""

    hidden_size: int
    """d of the hidden state."""

    tokenizer: Tokenizer
    """Its vocabulary."""

    abilities: EdgeAbilities
    """Capabilities of its engine."""

    parameters: int | None = None
    """Number of weights, where it is known."""

    build: str = ""
    """The engine and the form of the weights, in words; empty where it does not say."""

    sampling: Mapping[str, float] = MappingProxyType({})
    """Sampling settings from the model's file: fields of `Sampling`."""

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> EdgeSession:
        """A session whose steps keep `needs` (and the `top` likeliest ids); raises `UsageError`."""
        ...

    def fingerprint(self) -> str:
        """A hash that tells this very build (weights and quantisation) from any other."""
        ...

    def close(self) -> None:
        """Free the weights."""
        ...
