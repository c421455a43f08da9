"""Many decoders in one process, for `benchmarks.load_faults`: a thread a session.

Each is a real decoder with a scripted edge model, its own circuit breaker and latencies; a consult
is due at fixed times, whatever became of the one before. Prints what happened as JSON.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import Floats, Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import EdgewiseError
from edgewise.events import Consult, Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge

TOKENS, ASK_EVERY = 16, 4
ASKS = TOKENS // ASK_EVERY
OWN_REASONS = frozenset({"unavailable", "timeout", "refused", "rejected", "protocol"})
"""Why a token that was to be the cloud's may be the edge's; and a pause after these."""


class Report(msgspec.Struct):
    """What a process of devices saw. Times are of the machine's monotonic clock, seconds.

    `consults` are (when it was over, how long it took, 1 where it was answered). `written` are the
    cloud's tokens by the prefix that they were written after, as (prompt and answer so far, id).
    """

    answers: int = 0
    lost: list[str] = []
    wrong: int = 0
    reasons: dict[str, int] = {}
    consults: list[tuple[float, float, int]] = []
    written: list[tuple[list[int], int]] = []


class Paced:
    """A router whose every fourth token is critical, when it is due."""

    needs, top = Needs.NOTHING, 0
    name = "paced"

    def __init__(self, prompt: int, first: float, every: float) -> None:
        self._prompt, self._due, self._every = prompt, first, every

    def score(self, step: Step) -> float:
        if (step.position - self._prompt) % ASK_EVERY:
            return 0.0
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due + self._every, time.monotonic() - self._every)
        return 1.0


class Edge:
    """What the edge models write, in the vocabulary of the engine."""

    def __init__(self, engine: str) -> None:
        """Of bytes for a scripted engine, else that of the bundled pair."""
        self.tokenizer = ByteTokenizer()
        self.end = min(self.tokenizer.eos_ids)
        if engine != "scripted":
            model = LlamaModel(bundled("edge"), threads=1)
            self.tokenizer = model.tokenizer
            self.end = min(self.tokenizer.eos_ids)
        text = "The quick brown fox jumps over the lazy dog."
        self.written = self.tokenizer.encode(text)[:TOKENS]

    def model(self, number: int) -> tuple[ScriptedEdge, list[int]]:
        """A session's model, and its prompt: each has one of its own."""
        prompt = self.tokenizer.encode(f"Question {number}: who jumps over the dog, and why? ")

        def script(ids: Sequence[int]) -> Floats:
            logits = np.zeros(self.tokenizer.size, np.float32)
            logits[self.expected(len(ids) - len(prompt))] = 20.0
            return logits

        return ScriptedEdge(script, tokenizer=self.tokenizer), prompt

    def expected(self, offset: int) -> int:
        """The edge's token at an offset of the answer, whatever stands before it."""
        return self.written[offset] if offset < len(self.written) else self.end


class Devices:
    """Sessions in threads over one gateway; `report` is filled as they go."""

    def __init__(self, url: str, edge: Edge) -> None:
        self.report = Report()
        self._edge, self._reasons = edge, Counter[str]()
        self._lock = threading.Lock()
        self._cloud: CloudModel = GatewayCloud(url)
        self._cloud.check(edge.tokenizer)

    def session(self, number: int, begin: float, end: float, every: float, phase: float) -> None:
        """Answers one after the other, until the time is over and the last one is whole."""
        model, prompt = self._edge.model(number)
        router = Paced(len(prompt), begin + phase, every)
        decoder = Decoder(model, router=router, policy=Policy(threshold=0.5), cloud=self._cloud)
        while time.monotonic() < end:
            try:
                self._answer(decoder, prompt)
            except EdgewiseError as error:
                self._lose(str(error))
            except Exception as error:
                self._lose(repr(error))

    def close(self) -> None:
        self.report.reasons = dict(self._reasons)
        self._cloud.close()

    def _answer(self, decoder: Decoder, prompt: list[int]) -> None:
        ids, finished = list(prompt), False
        for event in decoder.stream(prompt, max_tokens=TOKENS):
            if isinstance(event, Token):
                self._take(event, ids)
                ids.append(event.id)
            elif isinstance(event, Consult):
                good = int(event.outcome == "answered")
                with self._lock:
                    self.report.consults.append((time.monotonic(), event.seconds, good))
            elif isinstance(event, Finished):
                finished = True
        if not finished or len(ids) - len(prompt) != TOKENS:
            self._lose(f"{len(ids) - len(prompt)} tokens, finished: {finished}")
        with self._lock:
            self.report.answers += 1

    def _take(self, token: Token, ids: list[int]) -> None:
        due = token.index % ASK_EVERY == 0
        with self._lock:
            if token.source == "cloud":
                self.report.written.append((list(ids), token.id))
                self._reasons["cloud"] += 1
                return
            excused = token.reason in OWN_REASONS or token.reason == "circuit_open"
            self.report.wrong += token.id != self._edge.expected(token.index)
            self.report.wrong += due and not excused
            if due:
                self._reasons[token.reason] += 1

    def _lose(self, why: str) -> None:
        with self._lock:
            self.report.lost.append(why)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--engine", choices=["scripted", "llama-server"], default="scripted")
    parser.add_argument("--first", type=int, help="number of the first session")
    parser.add_argument("--sessions", type=int, help="in this process")
    parser.add_argument("--of", type=int, help="sessions in all")
    parser.add_argument("--rate", type=float, help="asks a second of all sessions")
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    devices = Devices(options.url, Edge(options.engine))
    # Ready; the other side says when it begins.
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    every = options.of / options.rate
    threads = [
        threading.Thread(
            target=devices.session,
            args=(number, begin, begin + options.seconds, every, every * number / options.of),
        )
        for number in range(options.first, options.first + options.sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    devices.close()
    print(json.dumps(msgspec.to_builtins(devices.report)), flush=True)


if __name__ == "__main__":
    main()
