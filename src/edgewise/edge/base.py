"""The interface of an edge model: a tokenizer, weights, and sessions with one KV cache each.

An engine in this process implements `EdgeModel` and, for the KV cache of one sequence,
`SequenceCache`. Its sessions are `KvSession`s; the model's `Slots` object gives each of them a
cache.
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
"""Test strings that tokenizers with other merges or pre-tokenizers likely encode differently."""


class Needs(Flag):
    """Flags for the parts of a `Step` that must stay readable after the engine's next decode.

    `ENTROPY`, `TOP`, `LOGITS`, `HIDDEN` keep the `Step` member so named, `TEXT` keeps `written`.
    """

    NOTHING = 0
    ENTROPY = auto()
    TOP = auto()
    LOGITS = auto()
    HIDDEN = auto()
    TEXT = auto()


class Written(NamedTuple):
    """The text before a step, as token ids.

    `ids` are all ids before the predicted position. `prompt` is how many of them, at the beginning,
    are the prompt; the others are the answer so far. `tokenizer` decodes them.
    """

    ids: Sequence[int]
    prompt: int
    tokenizer: "Tokenizer"


class Step(ABC):
    """The edge model's prediction for one position: logits, hidden state, entropy, candidates.

    Logarithms are natural. The engine's next decode may overwrite the parts that were not named as
    `needs` in the call of `EdgeModel.session`; reading one of them then raises `StaleStepError`.
    """

    _written: Written | None

    position: int
    """Number of token ids before the predicted position."""

    size: int
    """Number of logits: one for each id of the vocabulary."""

    proposed: int
    """The likeliest id: the token that greedy decoding would write."""

    @property
    @abstractmethod
    def logits(self) -> Floats:
        """Unnormalised scores of all ids: float32[size]."""

    @property
    @abstractmethod
    def hidden(self) -> Floats:
        """Hidden state after the final norm: float32[d]. `StaleStepError` if the step has none."""

    @property
    def written(self) -> Written:
        """All ids before the predicted position, those of the prompt too, as `Written`.

        Raises `StaleStepError` unless the session was opened with `Needs.TEXT`.
        """
        if self._written is None:
            raise StaleStepError("This step was computed without its text.")
        return self._written

    @property
    @abstractmethod
    def entropy(self) -> float:
        """Shannon entropy of the next-token distribution, in nats."""

    @abstractmethod
    def top(self, k: int) -> tuple[Ids, Floats]:
        """Return the k likeliest ids (int32[k]) and their logits (float32[k]), best first."""

    @abstractmethod
    def logprob(self, token: int) -> float:
        """Return the natural logarithm of the probability of the id `token`."""

    @abstractmethod
    def candidates(self, k: int) -> tuple[Candidate, ...]:
        """Return the k likeliest ids with logprobs, best first; fewer if the engine has fewer."""


class Tokenizer(Protocol):
    """Converts text to ids and back, and names the ids that end an answer."""

    size: int
    """Number of ids in the vocabulary."""

    eos_ids: frozenset[int]
    """Every id that ends an answer."""

    @property
    def special(self) -> Mapping[int, str]:
        """Texts of the special (control) tokens by id; in an answer these ids stand for no text."""
        ...

    chat_template: str | None
    """The model's own Jinja chat template; None if it has none.

    A tokenizer may also have an attribute `tool_template`: the template for tool calls, or None.
    """

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`, without a BOS token.

        With `special`, the texts of special tokens become those tokens; else they are plain text.
        """
        ...

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a prompt, after a BOS token if the model wants one.

        Pass `special=False` unless a chat template made the text (see `encode`).
        """
        ...

    def piece(self, token: int) -> bytes:
        """Return the UTF-8 bytes that an id stands for; empty for special tokens and padding ids.

        Raises `UsageError` for an id outside of the vocabulary.
        """
        ...

    def special_text(self, name: str) -> str:
        """Return the text of the special token `name`, "bos" or "eos"; empty if there is none."""
        ...


class EdgeSession(ABC):
    """One sequence of an edge model: its token ids and their KV cache.

    New ids are queued until `step` computes them. Only one thread at a time may use a session.
    """

    def __init__(self, model: "EdgeModel", needs: Needs) -> None:
        """Start without ids. Raises `UsageError` if the engine lacks needed hidden states."""
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
        """Number of ids that the session holds, both computed and queued."""
        return len(self._ids)

    @property
    def computed(self) -> int:
        """Number of ids in the KV cache; 0 if the engine does not report it."""
        return 0

    @abstractmethod
    def open(self, ids: Sequence[int]) -> int:
        """Make `ids` the whole sequence; return how many leading ids the KV cache already holds.

        Raises `ContextOverflow` if they do not fit, `UsageError` for unknown ids or once closed.
        """

    def prefill(self) -> bool:
        """Compute the next batch of queued ids, never the last id; return whether any was computed.

        Calling it is optional, since `step` computes what is left; an engine may always return
        False. Raises `UsageError` once closed, `ModelError` if the engine fails.
        """
        return False

    @abstractmethod
    def step(self) -> Step:
        """Compute the queued ids, and return the prediction of the token after the last id.

        Raises `UsageError` without ids or once closed, `ModelError` if the engine fails,
        `EdgeError` if the server that runs the model fails.
        """

    @abstractmethod
    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        """Append `ids`, compute them, and return for each the `Step` that predicts the next token.

        With `EdgeAbilities.batch_logits` they share one forward pass, else each has its own. Raises
        `ContextOverflow` if they do not fit, `UsageError` for unknown ids, for more than one pass
        takes (512) or once closed, `ModelError` or `EdgeError` if the engine or its server fails.
        """

    def extend(self, ids: Sequence[int]) -> None:
        """Queue ids behind those that the session holds; the next `step` computes them.

        Raises `ContextOverflow` if they do not fit, `UsageError` for unknown ids or once closed.
        """
        # The first ids choose the KV cache, and count as the prompt.
        if not self._opened:
            self.open(ids)
            return
        self._require_room(len(self._ids), ids)
        self._ids.extend(ids)

    def rewind(self, position: int) -> None:
        """Keep the first `position` ids, drop the rest. Raises `ValueError` if there are fewer."""
        self._check_open()
        if not 0 <= position <= len(self._ids):
            raise ValueError(f"cannot rewind to {position}: the session holds {len(self._ids)} ids")
        del self._ids[position:]

    def checkpoint(self, position: int) -> None:  # noqa: B027
        """Announce a possible `rewind(position)`, before the ids behind `position` are computed.

        Engines that can roll back only to checkpoints save one there; others ignore the call.
        """

    def rest(self) -> None:  # noqa: B027
        """Announce that the next `step` is some time away, as during a request to the cloud.

        An engine that computes several sessions in one pass then does not wait for this one.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session for good, and free its slot for another session."""

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
        """Raise as `extend` does unless `ids` may follow `before` other ids."""
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
    """What an edge model's engine can do.

    `hidden`: steps have hidden states. `logits`: they have logits, not logprobs alone. `rewinds`:
    which KV cache entries remain after a rollback: all before the position ("anywhere"), those up
    to the last checkpoint before it ("checkpoints"), or none ("no"). `batch_logits`: one forward
    pass can return the logits after every id in it. `text`: the engine is sent text, not ids, so
    that a sequence must end at a whole character. `slots`: how many sessions may be open at once.
    """

    hidden: bool = True
    logits: bool = True
    rewinds: Rewinds = "anywhere"
    batch_logits: bool = True
    text: bool = False
    slots: int = 1


class EdgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for loading an edge model.

    `context`: most ids per session. `threads`: CPU threads. None leaves these two to the engine.
    `gpu_layers`: layers to offload to a GPU ("auto": all, if there is one). `slots`: how many
    sessions may be open at once. An engine raises `UsageError` for one of these that it cannot
    honour. `keep_prefixes`: keep the KV cache of a closed session until its slot is needed, for the
    next turn of the conversation. An answer may then differ, by rounding errors, from the same one
    computed anew.

    The others are only for a server that runs the edge model. `model`: which of its models to use.
    `tokenizer`: address of the model's tokenizer, if the model's file is not on this disk. `key`:
    the API key. `sent(host, body)` is called with each request's JSON body before it is sent.
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
"""Whether a folder's format is "own" to the engine's library, or "shared" with other engines."""


class EdgeModel(Protocol):
    """Loaded weights, which all sessions of the model share.

    An engine may omit the members that have a default value here. A class that opens model folders
    also has `reads`, the endings of the names of the files that it reads, and a static method
    `claims(ModelFiles)`. For a folder with these files, `claims` returns "own" if the format
    belongs to the engine's library, "shared" if other engines open it, too, or None if the class
    cannot open it.
    """

    name: str
    """Display name of the model."""

    context: int
    """Longest sequence of a session, in ids."""

    hidden_size: int
    """Length of a hidden state; 0 if unknown."""

    tokenizer: Tokenizer
    """The model's tokenizer, which defines its vocabulary."""

    abilities: EdgeAbilities
    """What the model's engine can do."""

    parameters: int | None = None
    """Number of weights; None if unknown."""

    build: str = ""
    """Engine and weight format, such as "llama.cpp, Q4_K - Medium"; empty if unknown."""

    sampling: Mapping[str, float] = MappingProxyType({})
    """Sampling settings that the model's file recommends, such as {"temperature": 0.7}."""

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> EdgeSession:
        """Open a session. Its steps keep what `needs` names readable after later decodes.

        `top` is the number of likeliest ids that `Needs.TOP` keeps. Close the session to free its
        slot. Raises `UsageError` if no slot is free, or if the engine lacks what `needs` names.
        """
        ...

    def fingerprint(self) -> str:
        """Return a hash (hexadecimal digits) that differs for other weights or quantisations."""
        ...

    def close(self) -> None:
        """Free the weights; the model and its sessions cannot be used afterwards."""
        ...
