"""The contract of a cloud model, which opens one session for each answer.

Every request to a session states the whole sequence of token ids; a session with a gateway sends
only those that the gateway lacks. So no call is needed when draft tokens are rolled back.
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
    """A consult: one request to the cloud model, to write tokens or to verify draft tokens.

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

    `n` is 0 then. Only a model that `reads_passages` may be given an `n` too: it then replaces all
    of these draft tokens by an answer of its own, of at most `n` tokens.
    """


class CloudSession(Protocol):
    """The conversation with the cloud model for one answer."""

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """Send a request to the cloud model; return the future of its completion.

        The future fails with a `CloudError`: with `CloudTimeout` once the request's deadline has
        passed. Cancel it to give the request up. Raises `Blocked` at once if the context filter
        (which hides private words) forbids sending the text.
        """
        ...

    def prefetch(self, ids: Sequence[int], record: Recorder = Outgoing) -> Future[None] | None:
        """Send ids ahead of a consult, so that their prefill is done when one comes.

        The loop calls it only if `CloudModel.prefetches` is True, before and while the answer is
        decoded. `ids` are those of the prompt and of the answer so far. `record` is to be called
        with them, and returns the `Outgoing` to count what is sent. Returns a future that is done
        once the ids are sent; None, as here, if nothing is sent. Best effort.
        """
        return None

    def close(self) -> None:
        """End the session, as its answer is over. Futures of running requests may fail."""


class CloudModel(Protocol):
    """A large model that writes, or verifies, tokens of an answer that the edge model decodes.

    Completions hold ids of the edge model's vocabulary, even if the cloud model has another.
    """

    name: str

    vocabulary_check: str = ""
    """What `check_vocabulary` found, in words, such as "5 strings have the same ids"."""

    local: EdgeModel | None = None
    """The loaded model, if it runs in this process; None for an `Adapter` around such a model."""

    reads_once: bool = True
    """Whether a verification is billed as one prompt; False: one for each draft token."""

    verifies: bool = False
    """Whether this model can verify draft tokens. Known after `check_vocabulary`."""

    prefetches: bool = False
    """Whether `CloudSession.prefetch` saves time with this model, as it does behind a gateway."""

    reads_passages: bool = False
    """Whether this model verifies whole passages of text, since it cannot score tokens.

    Then `Completion.stand` says how many of the draft tokens are accepted.
    """

    reads_well: bool = True
    """False if this model missed an obvious mistake in a passage when it was connected to."""

    here: bool = False
    """Whether this model runs in this process, so that a slow reply does not mean a lost link."""

    own_tokenizer: Tokenizer | None = None
    """The cloud model's tokenizer, if an `Adapter` encodes the answer anew with it; else None."""

    boundaries: WordBoundaries | None = None
    """Decides where in an answer a model of another vocabulary may be asked; None: anywhere."""

    id_engine: Engine | None = None
    """The inference server behind this model, if asked by token ids without a gateway; or None."""

    def open(self, prompt: Prompt) -> CloudSession:
        """Return a session for one answer to `prompt`. Nothing is sent yet. Close it afterwards."""
        ...

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Connect, and check that the model can serve an edge model with this `tokenizer`.

        Returns what was found, in words (`vocabulary_check`). Raises `VocabularyMismatch` if the
        model cannot, for example because the ids differ, and a `CloudError` if it does not answer.
        """
        ...

    def close(self) -> None:
        """Close connections and threads."""
        ...

    def local_only(self, prompt: Prompt) -> bool:
        """Whether the prompt holds a private word that only trusted clouds may be sent.

        The setting `redact` names classes of such words (iban=local: IBANs), the setting `trust`
        the trusted clouds. To be overridden by models with a context filter.
        """
        return False

    def requests(self, n: int) -> tuple[int, int]:
        """Return (most requests of a consult for `n` tokens, most tokens in the reply to one)."""
        return 1, n

    def identity(self) -> str:
        """Return a name that tells this model from others, for files of what was measured with it.

        For a server it is URL, engine and model; before `check_vocabulary` parts may be missing.
        """
        return self.name


def with_end(completion: Completion, n: int, eos_ids: frozenset[int]) -> Completion:
    """Return the completion, with an end token appended if it `stopped` without one.

    `n` is the number of tokens asked for: a completion that is full gets none. `eos_ids` are the
    edge model's end tokens, of which the lowest is added.
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
