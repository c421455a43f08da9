"""Who verifies a draft: a cloud model that reads it in one pass and says what it would write.

`LocalVerifier` is a model in this process, its replies as late as a link would make them; an
engine elsewhere is behind `edgewise_lab.bench.frontier.verifier_vllm`.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step, Tokenizer
from edgewise.edge.kv import common_prefix
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import (
    CloudError,
    CloudRejected,
    CloudUnavailable,
    ContextOverflow,
    EdgewiseError,
    VocabularyMismatch,
)
from edgewise_lab.bench.frontier.base import CloudRequest


class Choice(NamedTuple):
    """What the cloud would write at a position, by how many nats before its second choice."""

    token: int
    margin: float


class Verified(NamedTuple):
    """What the cloud says of a draft.

    The first `accepted` of its tokens are those that the cloud would have written; `token` is its
    own one after them. `margins` go with these accepted + 1 tokens. `requests` are what was asked
    of the engine, `arrived` is when the reply was here (monotonic clock).
    """

    accepted: int
    token: int
    margins: tuple[float, ...]
    requests: tuple[CloudRequest, ...]
    arrived: float


class VerifierSession(Protocol):
    """The cloud's side of one answer. Replies come in the order in which they were asked for."""

    def verify(self, ids: Sequence[int], draft: Sequence[int]) -> "Future[Verified]":
        """Judge `draft`, which may be empty, behind `ids`; does not wait.

        The future fails with a `CloudError`.
        """
        ...

    @property
    def traffic(self) -> tuple[int, int] | None:
        """Bytes sent and received so far; None where there is no link."""
        ...

    def close(self) -> None:
        """Give the cache back; nothing is asked any more."""
        ...


class Verifier(Protocol):
    """A cloud model that verifies drafts of an edge with the same vocabulary."""

    @property
    def context(self) -> int | None:
        """Longest sequence, ids; None where it is not known here."""
        ...

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise `VocabularyMismatch`, or a `CloudError`, unless ids mean the same to both."""
        ...

    def open(self) -> VerifierSession:
        """For one answer."""
        ...


class Requested:
    """The sequences that the requests of one answer held, replies included."""

    def __init__(self) -> None:
        self._sequences: list[list[int]] = []

    def begin(self, ids: Sequence[int]) -> int:
        """A request with `ids` leaves; returns how many of them an earlier one began with."""
        seen, ids = 0, list(ids)
        for earlier in self._sequences:
            # Compared as a whole first: most share less than what is known to be shared.
            if earlier[: seen + 1] == ids[: seen + 1]:
                seen = common_prefix(earlier, ids)
        self._sequences.append(ids)
        return seen

    def replied(self, ids: Sequence[int], token: int) -> None:
        """To the request with `ids`, which began before."""
        self._sequences.append([*ids, token])


def judged(
    draft: Sequence[int], choices: Sequence[Choice], requests: Sequence[CloudRequest]
) -> Verified:
    """A draft against the cloud's choice at each of its positions and the one after it."""
    accepted = common_prefix(draft, [choice.token for choice in choices])
    return Verified(
        accepted=accepted,
        token=choices[accepted].token,
        margins=tuple(choice.margin for choice in choices[: accepted + 1]),
        requests=tuple(requests),
        arrived=time.monotonic(),
    )


class LocalVerifier:
    """Implements `Verifier` over a model in this process, which stays open.

    A reply is there `seconds(n)` after its request left, or when it is computed if that is later;
    n are the ids that were new to the cloud's cache: round trip and engine of the link that is
    emulated. Several may fly at once, as over one connection.
    """

    def __init__(self, model: EdgeModel, seconds: Callable[[int], float]) -> None:
        self.model, self.seconds = model, seconds
        self.engine = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verifier")
        self.link = ThreadPoolExecutor(max_workers=1, thread_name_prefix="link")

    @property
    def context(self) -> int:
        return self.model.context

    def check(self, tokenizer: Tokenizer) -> None:
        if fingerprint(tokenizer) != fingerprint(self.model.tokenizer):
            raise VocabularyMismatch(
                f"The edge model and the cloud model {self.model.name!r} have different "
                "vocabularies, so a draft of one means nothing to the other",
                hint="choose two models of one family",
            )

    def open(self) -> "LocalVerification":
        return LocalVerification(self)

    def close(self) -> None:
        """End the threads; replies that fly are waited for."""
        self.engine.shutdown()
        self.link.shutdown()


class LocalVerification:
    """Implements `VerifierSession`; its edge session belongs to the verifier's thread."""

    traffic = None

    def __init__(self, verifier: LocalVerifier) -> None:
        self._verifier = verifier
        self._session: EdgeSession | None = None
        self._requested = Requested()

    def verify(self, ids: Sequence[int], draft: Sequence[int]) -> Future[Verified]:
        left = time.monotonic()
        try:
            reply = self._verifier.engine.submit(self._read, list(ids), list(draft))
            return self._verifier.link.submit(self._deliver, reply, left)
        except RuntimeError as error:
            # A pool that was shut down takes no more.
            raise CloudUnavailable("The verifier was closed.") from error

    def close(self) -> None:
        self._verifier.engine.submit(self._end)

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()

    def _deliver(self, reply: Future[Verified], left: float) -> Verified:
        verified = reply.result()
        computed = sum(request.computed or 0 for request in verified.requests)
        end = left + self._verifier.seconds(computed)
        time.sleep(max(0.0, end - time.monotonic()))
        return verified._replace(arrived=time.monotonic())

    def _read(self, ids: list[int], draft: list[int]) -> Verified:
        try:
            return self._judge(ids, draft)
        except CloudError:
            raise
        except ContextOverflow as error:
            raise CloudRejected(f"The cloud model declined: {error}") from error
        except EdgewiseError as error:
            raise CloudError(f"The cloud model failed: {error}") from error

    def _judge(self, ids: list[int], draft: list[int]) -> Verified:
        if not ids:
            raise CloudRejected("A draft needs ids before it.")
        begun = time.monotonic()
        if self._session is None:
            self._session = self._verifier.model.session(Needs.TOP, top=2)
        sequence = [*ids, *draft]
        cached = self._session.open(ids[:-1])
        # The last id before the draft is read with it: what comes after it is judged as well.
        choices = [_choice(step) for step in self._session.steps([ids[-1], *draft])]
        request = CloudRequest(
            prompt=len(sequence),
            seen=self._requested.begin(sequence),
            written=1,
            cached=cached,
            computed=len(sequence) - cached,
            engine_seconds=time.monotonic() - begun,
        )
        self._requested.replied(sequence, choices[-1].token)
        return judged(draft, choices, [request])


def _choice(step: Step) -> Choice:
    ids, logits = step.top(2)
    return Choice(int(ids[0]), float(logits[0] - logits[1]))
