"""A scripted cloud model: answers from a script, fails where it is told to."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from edgewise.cloud.base import Prefix
from edgewise.edge.base import Tokenizer
from edgewise.errors import CloudError, VocabularyMismatch
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer, Script
from edgewise.verdict import Verdict

Failing = Callable[[int], CloudError | None]
"""From the number of the ask (0, 1, ...) to the error it ends with, or None."""


class ScriptedCloud:
    """Implements `CloudModel`. `asks` records (position, new ids, n) of every ask."""

    def __init__(
        self,
        script: Script,
        *,
        fault: Failing = lambda ask: None,
        delay: float = 0.0,
        tokenizer: ByteTokenizer | None = None,
    ) -> None:
        """`delay` in seconds holds back every answer and every fault."""
        self.name = "scripted"
        self.script = script
        self.fault = fault
        self.delay = delay
        self.asks: list[tuple[int, tuple[int, ...], int]] = []
        self.tokenizer = tokenizer or ByteTokenizer()

    def open(self, ids: Sequence[int]) -> "ScriptedCloudSession":
        return ScriptedCloudSession(self, ids)

    def check(self, tokenizer: Tokenizer) -> str:
        if tokenizer.fingerprint() != self.tokenizer.fingerprint():
            raise VocabularyMismatch("The scripted cloud has another vocabulary; use the same.")
        return "both vocabularies hash alike"

    def close(self) -> None:
        """Nothing to let go of."""


class ScriptedCloudSession:
    """Implements `CloudSession`; greedy whatever the sampling says."""

    pushes = False

    def __init__(self, cloud: ScriptedCloud, ids: Sequence[int]) -> None:
        self._cloud = cloud
        self._prefix = Prefix(ids)

    def ask(
        self, position: int, new_ids: Sequence[int], n: int, sampling: Sampling, deadline: float
    ) -> Future[Verdict]:
        number = len(self._cloud.asks)
        self._cloud.asks.append((position, tuple(new_ids), n))
        ids = self._prefix.put(position, new_ids)
        future: Future[Verdict] = Future()
        if self._cloud.delay:
            threading.Timer(self._cloud.delay, self._settle, (future, number, ids, n)).start()
        else:
            self._settle(future, number, ids, n)
        return future

    def warm(self, position: int, new_ids: Sequence[int]) -> None:
        self._prefix.put(position, new_ids)

    def close(self) -> None:
        """Nothing to forget."""

    def _settle(self, future: Future[Verdict], number: int, ids: list[int], n: int) -> None:
        if not future.set_running_or_notify_cancel():
            return
        error = self._cloud.fault(number)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(self._write(ids, n))

    def _write(self, ids: list[int], n: int) -> Verdict:
        written: list[int] = []
        ends = False
        while len(written) < n and not ends:
            written.append(int(self._cloud.script([*ids, *written]).argmax()))
            ends = written[-1] in self._cloud.tokenizer.eos_ids
        return Verdict(ids=tuple(written), logprobs=(None,) * len(written), stopped=ends)
