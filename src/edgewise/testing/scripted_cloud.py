"""A scripted cloud model for tests: one function computes its logits, another its failures."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.completion import LEAST, Completion, Outgoing, Recorder, Verified
from edgewise.edge.base import Floats, Tokenizer
from edgewise.edge.vocabulary import common_prefix, fingerprint
from edgewise.errors import CloudError, VocabularyMismatch
from edgewise.events import Candidate
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer, Script

ID_BYTES = 4
"""Bytes that each new token id adds to the record of what was sent (`Outgoing`)."""

Failing = Callable[[int], CloudError | None]
"""Maps the number of a consult (a request to the cloud model; 0, 1, ...) to its error, or None."""


class ScriptedCloud(CloudModel):
    """A cloud model whose logits come from a `Script`, a function of the ids so far.

    For assertions, `asks` lists (ids, number of tokens asked for) of each consult, `prefetched` the
    ids of each prefetch (ids sent ahead of a consult); `opened` and `closed` count sessions.
    """

    prefetches = True

    def __init__(
        self,
        script: Script,
        *,
        fault: Failing = lambda ask: None,
        delay: float = 0.0,
        tokenizer: ByteTokenizer | None = None,
        candidates: int = 0,
        verifies: bool = False,
    ) -> None:
        """`script` gives the logits of each token, `fault` the error of each consult, or None.

        Every reply and failure comes after `delay` seconds. With `candidates` above 0 each token
        has its logprob and so many likeliest ids, else neither. `verifies`: it can verify draft
        tokens. `tokenizer` is the model's own (None: that of a `ScriptedEdge`).
        """
        self.name, self.script, self.fault = "scripted", script, fault
        self.delay, self.candidates, self.verifies = delay, candidates, verifies
        self.asks: list[tuple[tuple[int, ...], int]] = []
        self.prefetched: list[tuple[int, ...]] = []
        self.opened = self.closed = 0
        self.tokenizer = tokenizer or ByteTokenizer()

    def open(self, prompt: Prompt) -> "ScriptedCloudSession":
        self.opened += 1
        return ScriptedCloudSession(self)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        if fingerprint(tokenizer) != fingerprint(self.tokenizer):
            raise VocabularyMismatch("The scripted cloud has another vocabulary", hint="share one")
        return "all ids and the ids of fixed strings hash alike"

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class ScriptedCloudSession:
    """A session of a `ScriptedCloud`. Implements `CloudSession`; always decodes greedily."""

    def __init__(self, cloud: ScriptedCloud) -> None:
        self._cloud = cloud
        self._held: list[int] = []

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        ids, n = request.ids, request.n
        number = len(self._cloud.asks)
        self._cloud.asks.append((tuple(ids), n))
        fresh = ids[common_prefix(self._held, ids) :]
        request.sent.add(fresh, bytes(ID_BYTES * len(fresh)))
        self._held = held = list(ids)
        future: Future[Completion] = Future()

        def settle() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if (error := self._cloud.fault(number)) is not None:
                future.set_exception(error)
            elif request.verify:
                future.set_result(self._verify(held, request.verify))
            else:
                future.set_result(self._write(held, n))

        if self._cloud.delay:
            threading.Timer(self._cloud.delay, settle).start()
        else:
            settle()
        return future

    def prefetch(self, ids: Sequence[int], record: Recorder = Outgoing) -> None:
        self._cloud.prefetched.append(tuple(ids))

    def close(self) -> None:
        self._cloud.closed += 1

    def _write(self, ids: list[int], n: int) -> Completion:
        written: list[int] = []
        logprobs: list[float | None] = []
        top: list[tuple[Candidate, ...]] = []
        ends = False
        while len(written) < n and not ends:
            logits = self._cloud.script([*ids, *written])
            written.append(int(logits.argmax()))
            ends = written[-1] in self._cloud.tokenizer.eos_ids
            likeliest = self._likeliest(logits)
            logprobs.append(likeliest[0].logprob if likeliest else None)
            top += [likeliest] if likeliest else []
        return Completion(
            ids=tuple(written), logprobs=tuple(logprobs), top=tuple(top), stopped=ends
        )

    def _verify(self, ids: list[int], count: int) -> Completion:
        made: list[Verified] = []
        for place in range(len(ids) - count, len(ids)):
            logprobs = _logprobs(self._cloud.script(ids[:place]))
            best = int(logprobs.argmax())
            known = max(LEAST, float(logprobs[ids[place]]))
            made.append(Verified(known, best, float(logprobs[best])))
        return Completion(ids=(), logprobs=(), verified=tuple(made))

    def _likeliest(self, logits: Floats) -> tuple[Candidate, ...]:
        logprobs = _logprobs(logits)
        best = np.argsort(-logits, kind="stable")[: self._cloud.candidates]
        return tuple(Candidate(int(token), float(logprobs[token])) for token in best)


def _logprobs(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
