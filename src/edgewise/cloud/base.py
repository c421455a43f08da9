"""The contract of a cloud model: sessions that are asked for tokens and answer with futures.

A session gets the whole sequence each time and sends only what the other side lacks. So a rollback
needs no call.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from edgewise.cloud.adapter.word_boundary import WordBoundaries
from edgewise.completion import Completion, Outgoing, Recorder
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.engines.base import Engine
from edgewise.errors import CloudError, EdgewiseError
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

_log = logging.getLogger(__name__)


class ConsultRequest(msgspec.Struct, frozen=True):
    """`n` tokens after `ids`, the prompt and the answer so far, within `deadline` seconds.

    `sent` counts every message that was handed to a connection, also of a consult that fails.
    """

    ids: Sequence[int]
    n: int
    deadline: float
    sampling: Sampling = Sampling()
    sent: Outgoing = msgspec.field(default_factory=Outgoing)
    verify: int = 0
    """So many of the last `ids` are the edge's and to be verified; `n` may be 0 then.

    Of a cloud that reads passages `n` tokens are then wanted in place of all of them: the answer.
    """


class CloudSession(Protocol):
    """The conversation with the cloud model for one answer."""

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """The future fails with a `CloudError`, `CloudTimeout` after the request's deadline.

        Raises `Blocked` if the context filter lets nothing leave.
        """
        ...

    def prefetch(self, ids: Sequence[int], record: Recorder = Outgoing) -> Future[None] | None:
        """Send ids ahead of a consult; None where nothing is sent. Best effort.

        Called with the prompt, then each token, if the model `prefetches`.
        """
        return None

    def close(self) -> None:
        """Forget the conversation."""


class CloudModel(Protocol):
    """A large model whose completions are in ids of the edge's vocabulary, its own or not."""

    name: str

    vocabulary_check: str = ""
    """How `check_vocabulary` compared the two: by all ids, a sample, or fixed strings."""

    local: EdgeModel | None = None
    """The model, if it runs in this process; None for an adapter."""

    reads_once: bool = True
    """`Engine.reads_once`."""

    verifies: bool = False
    """Whether it can verify ids that the edge wrote: known once it was checked."""

    prefetches: bool = False
    """Whether ids sent ahead of a consult save time, and cost its engine no request of its own."""

    reads_passages: bool = False
    """Whether it verifies by passages and writes no tokens, as `Completion.stand` tells."""

    here: bool = False
    """Whether it runs in this process: then a slow one is not a lost one."""

    own_tokenizer: Tokenizer | None = None
    """The tokenizer of the ids it is sent, if they are not the edge's."""

    boundaries: WordBoundaries | None = None
    """The word boundaries where a cloud of another vocabulary may be asked, else None."""

    id_engine: Engine | None = None
    """The engine, if one is asked directly, by token ids."""

    def open(self, prompt: Prompt) -> CloudSession:
        """A session for an answer to `prompt`; nothing is sent yet."""
        ...

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Connect, and check that the model shares `tokenizer`; returns `vocabulary_check`.

        Raises `VocabularyMismatch` or a `CloudError`.
        """
        ...

    def close(self) -> None:
        """Close connections and threads."""
        ...

    def local_only(self, prompt: Prompt) -> bool:
        """Whether a text in the prompt makes its conversation local."""
        return False

    def requests(self, n: int) -> tuple[int, int]:
        """Requests that a consult for `n` may take, and tokens asked for in each."""
        return 1, n

    def identity(self) -> str:
        """A name that no other model has, as far as is known here, once it was checked."""
        return self.name


def with_end(completion: Completion, n: int, eos_ids: frozenset[int]) -> Completion:
    """Adds the edge's end token if the engine ended the answer without returning its own."""
    ids = completion.ids
    if completion.stopped and len(ids) < n and not (ids and ids[-1] in eos_ids):
        empty = ((),) if completion.top else ()
        completion = replace(
            completion,
            ids=(*ids, min(eos_ids)),
            logprobs=(*completion.logprobs, None),
            top=(*completion.top, *empty),
        )
    return completion


def failed(error: CloudError) -> "Future[Any]":
    """A consult that ended before it began."""
    ended: Future[Any] = Future()
    ended.set_exception(error)
    return ended


def log_failure(done: "Future[None]") -> None:
    """A callback for futures that nobody waits for: it logs what went wrong."""
    error = None if done.cancelled() else done.exception()
    if isinstance(error, EdgewiseError):
        _log.info("in the background: %s", error)
    elif error is not None:
        _log.error("a call in the background failed", exc_info=error)
