"""The contract of a cloud model: sessions that are asked for tokens and answer with futures.

A session is given the whole sequence each time, works out itself what the other side lacks, and
says what it sent. So a rewind needs no call, and the device's ids are the truth.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from edgewise.cloud.bridge.word_boundary import WordBoundaries
from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.edge.scoring import Scored
from edgewise.engines.base import Abilities
from edgewise.errors import CloudError, CloudProtocolError, EdgewiseError, UsageError
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

_log = logging.getLogger(__name__)

_A = TypeVar("_A")
_B = TypeVar("_B")


class CloudSession(Protocol):
    """One answer's conversation with the cloud model."""

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Completion]:
        """Ask for `n` tokens after `ids`, prompt and answer so far; `sent` is told what travels.

        The future fails with a `CloudError`, `CloudTimeout` after `deadline` seconds. Whatever way
        the consult ends, `sent` counts every message of it that was handed to a connection. Raises
        `Blocked` where nothing of it may be sent.
        """
        ...

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        """Told of the prompt and then after every token; returns how many new ids it sends on.

        What can be sent ahead of a consult is sent here, less what the other side turns out to
        hold already; `sent` is told what travels. Best effort, and nothing where it would cost the
        engine a request of its own.
        """
        ...

    def close(self) -> None:
        """Forget the conversation."""
        ...


class CloudModel(Protocol):
    """A large model whose completions are in ids of the edge's vocabulary, its own or not."""

    name: str

    proof: str = ""
    """How `check` proved the vocabulary, in words: all ids, or fixed strings alone."""

    def open(self, prompt: Prompt) -> CloudSession:
        """A session about `prompt`; nothing is sent yet."""
        ...

    def check(self, tokenizer: Tokenizer) -> str:
        """Reach the model and prove that it shares `tokenizer`; says how it was proven.

        Raises `VocabularyMismatch` or a `CloudError`.
        """
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...

    @property
    def local(self) -> EdgeModel | None:
        """The weights, where they are in this process."""
        return None

    @property
    def here(self) -> bool:
        """Whether it runs in this process: then one that is slow is not one that is gone."""
        return self.local is not None

    @property
    def abilities(self) -> Abilities | None:
        """What `check` found the engine able to do; None where no engine is asked directly."""
        return None

    @property
    def own_tokenizer(self) -> Tokenizer | None:
        """That of the ids it is sent, where they are not the edge's."""
        return None

    @property
    def boundaries(self) -> WordBoundaries | None:
        """Where it may be asked if its vocabulary is another: for words, not tokens; else None."""
        return None

    def local_only(self, prompt: Prompt) -> bool:
        """Whether a text in the prompt keeps its conversation on the device, as `Prompt.local`."""
        return False

    def scored(
        self, ids: Sequence[int], *, top: int = 1, start: int = 0
    ) -> Generator[Sequence[Scored], None, None]:
        """The logprobs of `ids`, in the edge's vocabulary, as `edge.scoring.scored` says them.

        Raises `UsageError` where they cannot be had.
        """
        raise UsageError(
            f"The cloud model {self.name!r} tells no logprobs of a prompt: that takes one in this "
            "process, with the edge's vocabulary",
            hint="ask the edge for its own",
        )

    def requests(self, n: int) -> tuple[int, int]:
        """Requests that a consult for `n` may take, and tokens asked for in each."""
        return 1, n

    def identity(self) -> str:
        """Tells this model from any other as far as is known here, once it was checked."""
        return self.name


def with_end(completion: Completion, n: int, eos_ids: frozenset[int], name: str) -> Completion:
    """A completion that ended the answer, with the edge's end token where the engine kept its own.

    Raises `CloudProtocolError` for a completion without any token.
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
    if not completion.ids:
        raise CloudProtocolError(f"{name!r} answered a consult without any token.")
    return completion


def failed(error: CloudError) -> "Future[Any]":
    """A consult that ended before it began."""
    ended: Future[Any] = Future()
    ended.set_exception(error)
    return ended


def then(asked: "Future[_A]", read: Callable[[_A], _B]) -> "Future[_B]":
    """What `read` makes of an outcome, in the thread that brings it; cancelling it cancels both."""
    made: Future[_B] = Future()

    def told(done: "Future[_A]") -> None:
        if done.cancelled():
            made.cancel()
        elif made.set_running_or_notify_cancel():
            try:
                made.set_result(read(done.result()))
            except Exception as error:
                # Raised in this thread it would reach nobody.
                made.set_exception(error)

    made.add_done_callback(lambda _: asked.cancel() if made.cancelled() else None)
    asked.add_done_callback(told)
    return made


def log_failure(done: "Future[None]") -> None:
    """For calls that nobody waits for: what goes wrong in them is told here."""
    error = None if done.cancelled() else done.exception()
    if isinstance(error, EdgewiseError):
        _log.info("in the background: %s", error)
    elif error is not None:
        _log.error("a call in the background failed", exc_info=error)


class WrappedCloud:
    """Implements `CloudModel` by `cloud`. Who inherits from it writes what is to be different."""

    # Not from `CloudModel`: for a member that is missing here its default would answer.

    def __init__(self, cloud: CloudModel) -> None:
        self.cloud = cloud
        self.name, self.proof = cloud.name, cloud.proof

    def open(self, prompt: Prompt) -> CloudSession:
        return self.cloud.open(prompt)

    def check(self, tokenizer: Tokenizer) -> str:
        told = self.cloud.check(tokenizer)
        self.proof = self.cloud.proof
        return told

    def close(self) -> None:
        self.cloud.close()

    @property
    def local(self) -> EdgeModel | None:
        return self.cloud.local

    @property
    def here(self) -> bool:
        return self.cloud.here

    @property
    def abilities(self) -> Abilities | None:
        return self.cloud.abilities

    @property
    def own_tokenizer(self) -> Tokenizer | None:
        return self.cloud.own_tokenizer

    @property
    def boundaries(self) -> WordBoundaries | None:
        return self.cloud.boundaries

    def local_only(self, prompt: Prompt) -> bool:
        return self.cloud.local_only(prompt)

    def scored(
        self, ids: Sequence[int], *, top: int = 1, start: int = 0
    ) -> Generator[Sequence[Scored], None, None]:
        return self.cloud.scored(ids, top=top, start=start)

    def requests(self, n: int) -> tuple[int, int]:
        return self.cloud.requests(n)

    def identity(self) -> str:
        return self.cloud.identity()


class WrappedSession:
    """Implements `CloudSession` by `session`, as `WrappedCloud` does a model."""

    def __init__(self, session: CloudSession) -> None:
        self.session = session

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        return self.session.ask(ids, n, sampling, deadline, sent)

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return self.session.prefetch(ids, sent)

    def close(self) -> None:
        self.session.close()
