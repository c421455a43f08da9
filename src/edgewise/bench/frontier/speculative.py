"""Lossless speculative decoding: the edge drafts, the cloud verifies (Leviathan et al. 2023).

What stands is what the cloud alone would have written, greedily, so the edge buys time and no
quality. Equal up to near ties: a model that reads a batch of ids may find another likeliest one
than one that reads them singly, where two are almost as likely. Margins say how near.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from edgewise.bench.frontier.base import CloudRequest, MeasuredAnswer
from edgewise.bench.frontier.verifiers import Verified, Verifier, VerifierSession
from edgewise.edge.base import EdgeModel
from edgewise.errors import CloudProtocolError, ContextOverflow, UsageError
from edgewise.evaluation.room import room
from edgewise.evaluation.systems import Outcome, question_prompt, text_of
from edgewise.evaluation.tasks.base import Question
from edgewise.evaluation.tasks.grading import is_right, is_strictly_right


class Speculated(NamedTuple):
    """One answer: its ids, and for each the cloud's margin (nats) and when it was shown (seconds).

    `corrected` tokens replaced a draft's, `added` are all that the cloud wrote itself and the
    answer holds. `drafted` are those that were sent, also in drafts that nobody needed any more.
    """

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    shown: tuple[float, ...]
    rounds: int
    corrected: int
    added: int
    drafted: int
    accepted: int
    decodes: int
    positions: int
    requests: tuple[CloudRequest, ...]
    traffic: tuple[int, int] | None


class Speculative:
    """Implements `MeasuredSystem`.

    The first request leaves before the edge has read the prompt and carries no draft: the cloud
    reads the prompt meanwhile and writes the first token. Then the edge drafts up to `draft`
    tokens a request and waits for each; `pipelined` it drafts on while they fly, and what stands
    behind a rejected token is thrown away. A token is shown once it is verified.
    """

    def __init__(
        self, edge: EdgeModel, verifier: Verifier, *, draft: int, pipelined: bool, max_tokens: int
    ) -> None:
        """Raises `UsageError`, or what the verifier's `check` does."""
        if draft < 1 or max_tokens < 1:
            raise UsageError("Drafts and answers have at least 1 token.")
        verifier.check(edge.tokenizer)
        self.draft, self.pipelined = draft, pipelined
        self._edge, self._verifier, self._max_tokens = edge, verifier, max_tokens

    def ask(self, prompt: Sequence[int]) -> Speculated:
        """The answer to a prompt's ids. Raises a `CloudError`, or `ContextOverflow`."""
        known = () if self._verifier.context is None else (self._verifier.context,)
        longest = room(len(prompt), self._max_tokens, self._edge.context, *known)
        if longest < 1:
            raise ContextOverflow(
                f"A prompt of {len(prompt)} tokens leaves no room for an answer",
                hint="shorten it or raise the context",
                setting="ctx",
            )
        session = self._verifier.open()
        try:
            drafter = _Drafter(self._edge, prompt)
            try:
                return _Speculation(self, drafter, session, prompt, longest).run()
            finally:
                drafter.close()
        finally:
            session.close()

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return self._edge.tokenizer.eos_ids

    @property
    def size(self) -> int:
        """How many ids there are."""
        return self._edge.tokenizer.size

    def answer(self, question: Question) -> MeasuredAnswer:
        tokenizer = self._edge.tokenizer
        found = self.ask(question_prompt(tokenizer, question).ids)
        text = text_of(tokenizer, found.ids)
        meters = [(request.cached, request.computed) for request in found.requests]
        cached, computed = (_total(counts) for counts in zip(*meters, strict=True))
        outcome = Outcome(
            question=question.id,
            family=question.family,
            text=text,
            right=is_right(question, text),
            strict=is_strictly_right(question, text),
            output_tokens=len(found.ids),
            cloud_tokens=found.added,
            wasted_tokens=sum(request.written for request in found.requests) - found.added,
            consults=found.rounds,
            changed=found.corrected,
            cached=cached,
            computed=computed,
            seconds=found.shown[-1],
        )
        sent, received = found.traffic or (None, None)
        return MeasuredAnswer(
            outcome=outcome,
            ttft=found.shown[0],
            gap=float(np.diff(found.shown).max(initial=0.0)),
            decodes=found.decodes,
            positions=found.positions,
            requests=found.requests,
            sent=sent,
            received=received,
            drafted=found.drafted,
            accepted=found.accepted,
        )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class _Drafter:
    """The edge's side: a session whose ids are the prompt, what stands, and what is hoped for."""

    def __init__(self, edge: EdgeModel, prompt: Sequence[int]) -> None:
        self.decodes = self.positions = self._read = 0
        self._session = edge.session()
        self._session.open(prompt)

    def read(self) -> int:
        """One forward pass over what was not read yet; returns the edge's next token."""
        token = self._session.step().proposed
        self.decodes += 1
        self.positions += self._session.position - self._read
        self._read = self._session.position
        return token

    def go_on(self, token: int) -> None:
        """`token` stands next, to be read by the next pass."""
        self._session.extend([token])

    def back(self, position: int) -> None:
        """Drop the ids from `position` on."""
        self._session.rewind(position)
        self._read = min(self._read, position)

    def mark(self) -> None:
        """A rewind may come to here."""
        self._session.checkpoint(self._session.position)

    def close(self) -> None:
        self._session.close()


class _Flight(NamedTuple):
    draft: list[int]
    reply: Future[Verified]


class _Speculation:
    """One answer as it is made."""

    def __init__(
        self,
        system: Speculative,
        drafter: _Drafter,
        session: VerifierSession,
        prompt: Sequence[int],
        longest: int,
    ) -> None:
        self._system, self._drafter, self._session = system, drafter, session
        self._prompt, self._longest = list(prompt), longest
        self._begun = time.monotonic()
        self._ids: list[int] = []
        self._margins: list[float] = []
        self._shown: list[float] = []
        # Drafted and not judged yet; of those the last were not sent yet.
        self._hoped: list[int] = []
        self._unsent: list[int] = []
        self._flights: deque[_Flight] = deque()
        self._all: list[_Flight] = []
        self._rounds = self._corrected = self._added = self._accepted = 0

    def run(self) -> Speculated:
        """To the end of the answer."""
        self._send()
        if not self._system.pipelined:
            self._drafter.read()
        while not self._over:
            if self._may_draft():
                self._draft()
            elif not self._flights:
                self._send()
            while self._flights and (self._flights[0].reply.done() or not self._may_draft()):
                self._settle(self._flights.popleft())
        return self._result()

    @property
    def _over(self) -> bool:
        ended = bool(self._ids) and self._ids[-1] in self._system.eos_ids
        return ended or len(self._ids) == self._longest

    def _may_draft(self) -> bool:
        """The last token that there is room for is the cloud's own."""
        waiting = bool(self._flights) and not self._system.pipelined
        ended = bool(self._hoped) and self._hoped[-1] in self._system.eos_ids
        full = len(self._ids) + len(self._hoped) >= self._longest - 1
        return not (waiting or ended or full)

    def _draft(self) -> None:
        """One token; a draft that is whole, or cannot grow, leaves."""
        if not self._unsent:
            self._drafter.mark()
        token = self._drafter.read()
        self._drafter.go_on(token)
        self._hoped.append(token)
        self._unsent.append(token)
        if len(self._unsent) == self._system.draft or not self._may_draft():
            self._send()

    def _send(self) -> None:
        sent = len(self._hoped) - len(self._unsent)
        before = [*self._prompt, *self._ids, *self._hoped[:sent]]
        flight = _Flight(self._unsent, self._session.verify(before, self._unsent))
        self._flights.append(flight)
        self._all.append(flight)
        self._unsent = []

    def _settle(self, flight: _Flight) -> None:
        """What the first flight's reply means for what is drafted, and what is shown for it."""
        verified, draft = flight.reply.result(), flight.draft
        _check(verified, len(draft), self._system.size)
        self._rounds += 1
        self._accepted += verified.accepted
        self._take(draft[: verified.accepted], verified.margins, verified.arrived)
        del self._hoped[: verified.accepted]
        if self._over:
            self._flights.clear()
            return
        as_hoped = verified.accepted == len(draft) and self._hoped[:1] == [verified.token]
        if as_hoped and verified.token not in self._system.eos_ids:
            # The next flight begins with it and judges it with what follows.
            return
        self._corrected += bool(self._hoped)
        self._added += 1
        self._take([verified.token], verified.margins[-1:], verified.arrived)
        self._flights.clear()
        self._hoped, self._unsent = [], []
        self._drafter.back(len(self._prompt) + len(self._ids) - 1)
        self._drafter.go_on(verified.token)

    def _take(self, ids: Sequence[int], margins: Sequence[float], arrived: float) -> None:
        # Behind an earlier reply, in whatever order they arrive.
        at = max([arrived - self._begun, *self._shown[-1:]])
        self._ids += ids
        self._margins += margins[: len(ids)]
        self._shown += [at] * len(ids)

    def _result(self) -> Speculated:
        # Replies that nobody needs any more are billed all the same.
        replies = [flight.reply.result() for flight in self._all]
        return Speculated(
            ids=tuple(self._ids),
            margins=tuple(self._margins),
            shown=tuple(self._shown),
            rounds=self._rounds,
            corrected=self._corrected,
            added=self._added,
            drafted=sum(len(flight.draft) for flight in self._all),
            accepted=self._accepted,
            decodes=self._drafter.decodes,
            positions=self._drafter.positions,
            requests=tuple(request for reply in replies for request in reply.requests),
            traffic=self._session.traffic,
        )


def _check(verified: Verified, drafted: int, size: int) -> None:
    """Raise `CloudProtocolError` for what no verifier can have found."""
    if not 0 <= verified.accepted <= drafted:
        raise CloudProtocolError(
            f"The verifier accepted {verified.accepted} tokens of a draft of {drafted}."
        )
    if not 0 <= verified.token < size:
        raise CloudProtocolError(f"The verifier answered with an id outside 0 to {size - 1}.")
    if len(verified.margins) != verified.accepted + 1:
        raise CloudProtocolError("The verifier's margins do not go with its tokens.")
