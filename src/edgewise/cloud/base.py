"""The interface of a cloud model (`CloudModel`), which opens a `CloudSession` for each answer.

Each request to a session states all token ids so far. So a session need not be told when draft
tokens are rolled back. A session with a gateway still sends only the ids that the gateway lacks.
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
    """A consult: it asks the cloud model to write tokens of an answer, or to verify draft tokens.

    `ids` are the token ids of the prompt, of the answer so far, and of draft tokens, if any. `n` is
    how many tokens the cloud model is to write after them (words, if its vocabulary is another).
    `deadline` is in seconds from the call of `ask`. `sent` counts every message handed to a
    connection, even if the consult fails.
    """

    ids: Sequence[int]
    n: int
    deadline: float
    sampling: Sampling = Sampling()
    sent: Outgoing = msgspec.field(default_factory=Outgoing)
    verify: int = 0
    """How many of the last `ids` are the edge model's draft tokens to be verified; 0 for none.

    `n` is 0 then. But a model that `reads_passages` may be given an `n`, if the drafts are the
    whole answer so far: it then writes an answer of its own, of at most `n` tokens, in their place.
    """


class CloudSession(Protocol):
    """The conversation with the cloud model for one answer."""

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """Send a request to the cloud model; return the future of its completion.

        The future fails with a `CloudError`: with `CloudTimeout` once the request's deadline has
        passed. Cancel the future to give the request up. Raises `Blocked` at once if the context
        filter (which hides private words) forbids sending the text.
        """
        ...

    def prefetch(self, ids: Sequence[int], record: Recorder = Outgoing) -> Future[None] | None:
        """Send ids ahead of a consult, so that they are prefilled when it comes. Best effort.

        Called only if `CloudModel.prefetches` is True, before and while the edge model decodes.
        `ids` are those of the prompt and of the answer so far; `record()` returns the `Outgoing`
        that counts what is sent. Returns a future that is done once the ids are sent; None, as
        here, if nothing is.
        """
        return None

    def close(self) -> None:
        """End the session when its answer is over. Futures of running consults may fail."""


class CloudModel(Protocol):
    """A large model that writes, or verifies, tokens of an answer that the edge model decodes.

    Completions hold ids of the edge model's vocabulary, even if the cloud model has another. `name`
    is its URL or, in this process, the loaded model's name.
    """

    name: str

    vocabulary_check: str = ""
    """What `check_vocabulary` found, as a text such as "5 strings have the same ids"."""

    local: EdgeModel | None = None
    """The loaded model, if it runs in this process; None also for an `Adapter` around one."""

    reads_once: bool = True
    """Whether a verification is billed as one prompt, not as one prompt for each draft token."""

    verifies: bool = False
    """Whether this model can verify draft tokens. Known after `check_vocabulary`."""

    prefetches: bool = False
    """Whether `CloudSession.prefetch` saves time with this model, as it does behind a gateway."""

    reads_passages: bool = False
    """Whether this model verifies whole passages of text, since it cannot score tokens.

    Then `Completion.stand` says how many of the draft tokens are accepted.
    """

    reads_well: bool = True
    """False if `check_vocabulary` sent a passage with an obvious mistake and it was not found."""

    here: bool = False
    """Whether this model runs in this process, so that a slow reply is no sign of a lost link."""

    own_tokenizer: Tokenizer | None = None
    """The cloud model's tokenizer, if an `Adapter` encodes prompt and answer with it; or None."""

    boundaries: WordBoundaries | None = None
    """Decides where in an answer a model of another vocabulary may be asked; None: anywhere."""

    id_engine: Engine | None = None
    """The client of the server that is asked by token ids without a gateway; None for others."""

    def open(self, prompt: Prompt) -> CloudSession:
        """Return a session for one answer to `prompt`. Nothing is sent yet. Close it afterwards."""
        ...

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Connect, and check that the model can serve an edge model with this `tokenizer`.

        Returns what was found, as a text (`vocabulary_check`). Raises `VocabularyMismatch` if the
        model cannot, for example because the ids differ, and a `CloudError` if it does not answer.
        """
        ...

    def close(self) -> None:
        """Close connections and threads."""
        ...

    def local_only(self, prompt: Prompt) -> bool:
        """Whether the prompt holds a private word that may be sent to trusted clouds only.

        The setting `redact` marks classes of such words ("iban=local": IBANs); the setting `trust`
        lists the hosts of trusted clouds. Models with a context filter override this method.
        """
        return False

    def requests(self, n: int) -> tuple[int, int]:
        """Return a consult's limits for `n` tokens: (requests, tokens in the reply to each one)."""
        return 1, n

    def identity(self) -> str:
        """Return a name that tells this model from others, by which measurements of it are stored.

        For a server it is URL, engine and model; before `check_vocabulary` parts may be missing.
        """
        return self.name


def with_end(completion: Completion, n: int, eos_ids: frozenset[int]) -> Completion:
    """Return the completion, with an end token appended if it `stopped` without one.

    `n` is the number of tokens asked for: a completion of `n` ids gets none. `eos_ids` are the edge
    model's end tokens, of which the lowest is appended.
    """
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
    """Return a future that has failed with `error` already."""
    ended: Future[Any] = Future()
    ended.set_exception(error)
    return ended


def log_failure(done: "Future[None]") -> None:
    """Log the error of a future that nobody waits for; for `add_done_callback`."""
    error = None if done.cancelled() else done.exception()
    # A link that fails is no bug, and the next consult tells of it.
    if isinstance(error, EdgewiseError):
        _log.info("in the background: %s", error)
    elif error is not None:
        _log.error("a call in the background failed", exc_info=error)
