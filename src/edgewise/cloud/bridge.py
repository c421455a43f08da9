"""A cloud model of another vocabulary: its own template, its own ids, its words in the edge's."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import reduce

from edgewise.cloud.base import CloudModel, CloudSession, failed, with_end
from edgewise.cloud.seam import Seams, bytes_of, held_back, kept, spelled, written_text
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.engines.base import Abilities
from edgewise.errors import (
    CloudError,
    CloudRejected,
    EdgewiseError,
    UsageError,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt, prompt_ids
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict, metered

WORD = 8
"""Tokens that a cloud elsewhere is asked for at once, for a word: enough for 19 of 20."""

STEP = 2
"""The same in this process, where asking again costs no round trip."""

LONGEST = 32
"""Tokens after which a word counts as none."""

FURTHER = 4
"""Tokens more for each further word."""

AT_ONCE = 256
"""Most tokens that it is asked for at once, however many words are wanted."""

PUSHED = 16
"""New ids of the edge's that are sent ahead together."""

_log = logging.getLogger(__name__)


class Bridge(CloudModel):
    """Implements `CloudModel` over one that speaks ids of its own. It may be asked at `seams`.

    Asked for n tokens it writes n words, so a verdict may have more ids. Closing it closes `cloud`.
    """

    def __init__(
        self, cloud: CloudModel, *, own: Tokenizer, edge: Tokenizer, words: bool = False
    ) -> None:
        """`own` is the cloud's tokenizer. With `words` a consult waits until a word opens.

        So it would for a cloud that takes text only; without, until both vocabularies divide.
        """
        self.cloud, self.own, self.edge = cloud, own, edge
        self.name = cloud.name
        self._seams = Seams(edge, None if words else own)
        self._words = words

    @property
    def own_tokenizer(self) -> Tokenizer:
        return self.own

    @property
    def seams(self) -> Seams:
        return self._seams

    @property
    def abilities(self) -> Abilities | None:
        return self.cloud.abilities

    def identity(self) -> str:
        return f"{self.cloud.identity()} at {'words' if self._words else 'seams'}"

    def requests(self, n: int) -> tuple[int, int]:
        further = FURTHER * (n - 1)
        step = min(WORD + further, AT_ONCE) if self.cloud.local is None else STEP
        return -(-(LONGEST + further) // step), step

    def open(self, prompt: Prompt) -> "BridgeSession":
        return BridgeSession(self, prompt)

    def check(self, tokenizer: Tokenizer) -> str:
        """Prove that the cloud's ids are those of its tokenizer; raises as `CloudModel.check`."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"This bridge to {self.name!r} leads from another vocabulary",
                hint="make one for this edge model",
            )
        try:
            proof = self.cloud.check(self.own)
        except VocabularyMismatch as error:
            raise VocabularyMismatch(
                f"The cloud model {self.name!r} does not read text as its tokenizer does",
                hint="name the tokenizer of the model that it serves",
                setting="cloud_tokenizer",
            ) from error
        return f"the cloud's ids are those of its own tokenizer ({proof})"

    def close(self) -> None:
        self.cloud.close()


def bridged(cloud: CloudModel, edge: Tokenizer, own: Tokenizer | None = None) -> CloudModel:
    """`cloud` itself where its vocabulary is the `edge`'s or not known here, else behind a bridge.

    `own` is the cloud's tokenizer; that of a model in this process is in its file.
    """
    if own is None and cloud.local is not None:
        own = cloud.local.tokenizer
    if own is None or fingerprint(own) == fingerprint(edge):
        return cloud
    return Bridge(cloud, own=own, edge=edge)


class BridgeSession:
    """Implements `CloudSession`: the same messages and answer, as the cloud reads them."""

    def __init__(self, bridge: Bridge, prompt: Prompt) -> None:
        self._bridge, self._prompt = bridge, prompt
        self._begun: list[int] = []
        self._session: CloudSession | None = None
        self._pushed = 0

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        """Ask for `n` words behind `ids`, which must not end inside of a character."""
        answer = list(ids[len(self._prompt.ids) :])
        end = time.monotonic() + deadline
        try:
            session = self._opened()
            text, held = held_back(self._written(answer))
            if not text and _puts_blanks(self._bridge.own):
                held = " "
            known = [*self._begun, *self._bridge.own.encode(text)]
        except EdgewiseError as error:
            return failed(_of_cloud(error))
        return _Consult(self._bridge, session, answer, known, held, n).ask(sampling, end, sent)

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        if self._pushed and abs(len(ids) - self._pushed) < PUSHED:
            return 0
        self._pushed = len(ids)
        try:
            session = self._opened()
            # The last word may still become another's beginning.
            whole = self._written(ids[len(self._prompt.ids) :]).rpartition(" ")[0]
            known = [*self._begun, *self._bridge.own.encode(whole)]
        except EdgewiseError as error:
            # Between characters, or at a consult that fails with it, more will be said.
            _log.debug("nothing is sent ahead: %s", error)
            return 0
        if sent is not None:
            sent.concerns(known)
        return session.push(known, sent)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _written(self, answer: Sequence[int]) -> str:
        """The text of an answer. Raises `CloudRejected` where it ends inside of a character."""
        text = written_text(bytes_of(self._bridge.edge, answer))
        if text is None:
            raise CloudRejected("A consult may not stand inside of a character.")
        return text

    def _opened(self) -> CloudSession:
        """The cloud's session, about the prompt as the cloud reads it. Raises `CloudRejected`."""
        if self._session is None:
            try:
                self._begun = self._read()
            except UsageError as error:
                raise CloudRejected(f"For the cloud model: {error}") from error
            own = Prompt(tuple(self._begun), self._prompt.messages)
            self._session = self._bridge.cloud.open(own)
        return self._session

    def _read(self) -> list[int]:
        """The cloud's ids of the prompt: of its messages, else of the text that its ids spell."""
        own, prompt = self._bridge.own, self._prompt
        if prompt.messages is not None:
            return prompt_ids(own, prompt.messages)
        text = bytes_of(self._bridge.edge, prompt.ids).decode("utf-8", "replace")
        return own.encode_prompt(text, special=False)


class _Consult:
    """Asks until enough words are whole; lives in whichever thread brings the cloud's tokens."""

    def __init__(
        self,
        bridge: Bridge,
        session: CloudSession,
        answer: list[int],
        known: list[int],
        held: str,
        words: int,
    ) -> None:
        """`answer` in ids of the edge's; `known` is what the cloud is sent, `held` what is not."""
        self._bridge, self._session = bridge, session
        self._answer, self._known, self._held, self._words = answer, known, held, words
        further = FURTHER * (words - 1)
        elsewhere = min(WORD + further, AT_ONCE)
        self._step = elsewhere if bridge.cloud.local is None else STEP
        self._most = LONGEST + further
        self._written: list[int] = []
        self._parts: list[Verdict] = []
        self._future: Future[Verdict] = Future()
        self._flying: Future[Verdict] | None = None

    def ask(self, sampling: Sampling, end: float, sent: Sent | None) -> Future[Verdict]:
        """`end` by the monotonic clock."""
        self._sampling, self._end, self._sent = sampling, end, sent
        self._future.add_done_callback(self._given_up)
        self._ask_more()
        return self._future

    def _ask_more(self) -> None:
        left = max(0.001, self._end - time.monotonic())
        known = [*self._known, *self._written]
        if self._sent is not None:
            self._sent.concerns(known)
        asked = self._session.ask(known, self._step, self._sampling, left, self._sent)
        self._flying = asked
        asked.add_done_callback(self._told)
        self._given_up(self._future)

    def _given_up(self, future: Future[Verdict]) -> None:
        if future.cancelled() and self._flying is not None:
            self._flying.cancel()

    def _told(self, done: Future[Verdict]) -> None:
        if done.cancelled():
            self._future.cancel()
        elif not self._future.cancelled():
            try:
                verdict = self._read(done.result())
                if verdict is None:
                    self._ask_more()
                else:
                    self._end_with(verdict)
            except EdgewiseError as error:
                self._end_with(_of_cloud(error))
            except Exception as error:
                # Raised in this thread it would reach nobody.
                self._end_with(error)

    def _end_with(self, outcome: Verdict | Exception) -> None:
        if self._future.set_running_or_notify_cancel():
            if isinstance(outcome, Verdict):
                self._future.set_result(outcome)
            else:
                self._future.set_exception(outcome)

    def _read(self, part: Verdict) -> Verdict | None:
        """The verdict, or None where more of it is needed; raises `CloudError`."""
        own = self._bridge.own
        prompt = len(self._known) + len(self._written)
        part.check(asked=self._step, prompt=prompt, size=own.size)
        self._parts.append(part)
        ended = part.stopped or part.ids[-1] in own.eos_ids
        self._written += [token for token in part.ids if token not in own.eos_ids]
        reply = bytes_of(own, self._written)
        found = kept(reply, self._held, self._words, ended=ended)
        if not found.complete and not ended and len(self._written) < self._most:
            return None
        ids = tuple(spelled(self._bridge.edge, self._answer, found.text))
        if not ids and not found.ends:
            raise CloudRejected(f"The cloud wrote no whole word in {len(self._written)} tokens.")
        verdict = Verdict(
            ids=ids,
            logprobs=(None,) * len(ids),
            stopped=found.ends,
            # Each request is one that an engine computes, and bills.
            cached=reduce(metered, [one.cached for one in self._parts]),
            computed=reduce(metered, [one.computed for one in self._parts]),
            prompt=reduce(metered, [one.prompt for one in self._parts]),
            engine_seconds=_sum([one.engine_seconds for one in self._parts]),
            written=sum(len(one.ids) for one in self._parts),
        )
        ends = self._bridge.edge.eos_ids or frozenset([0])
        return with_end(verdict, len(ids) + 1, ends, self._bridge.name)


def _of_cloud(error: EdgewiseError) -> CloudError:
    """As what a consult may fail with."""
    if isinstance(error, CloudError):
        return error
    return CloudError(f"The bridge to the cloud model failed: {error}")


def _sum(seconds: Sequence[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return sum(known) if len(known) == len(seconds) else None


def _puts_blanks(tokenizer: Tokenizer) -> bool:
    """Whether it reads a text as if a blank stood before it, as SentencePiece does."""
    return bytes_of(tokenizer, tokenizer.encode("x")) == b" x"
