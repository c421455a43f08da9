"""Sessions on a schedule: what each is due at which moment, and how late it came.

Open loop: what is due leaves when it is due, whether or not the earlier ones were answered, and
lateness counts from that moment. A session's answers follow each other without a pause; sessions
begin one after the other during the time of one answer, which is not measured.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

import numpy as np

from edgewise.engines.base import Client, Engine
from edgewise.errors import CloudError
from edgewise.sampling import Sampling

LIMIT = 0.3
"""Seconds that a consult may take, or a token of the engine's come after it was due."""

LATE = 0.05
"""The share that may take longer: p95 is within the limit."""

PUSH = 16
"""Ids after which a device tells a gateway what it has written, which fills the engine's cache."""

_LOOK_SECONDS = 0.25

Stream = Callable[[list[int], int], AsyncIterator[int]]
"""How many tokens of an answer came, each time that some came, for a prompt and a number."""


class Load(NamedTuple):
    """`sessions` of answers of `answer` tokens to prompts of `prompt` ids, `pace` tokens a second.

    `share` of the tokens are consults; None: the engine writes them all. Prompts and every 16 ids
    are computed as they are written, as behind a gateway. `tenant` is whose sessions they are, by
    which a llama-server's slots are named. Measured for `seconds`.
    """

    sessions: int
    share: float | None
    pace: float
    prompt: int
    answer: int
    seconds: float
    tenant: str = "load"
    seed: int = 0

    @property
    def turn(self) -> float:
        """Seconds of one answer."""
        return self.answer / self.pace


class Found(NamedTuple):
    """Latency of what was due, seconds (inf: it never came), over the `seconds` measured.

    `failed`: what was said of each that failed. `stopped`: cut off as soon as too many were late.
    `computed`: ids of prompts that the engine has computed meanwhile.
    """

    late: Sequence[float]
    failed: Sequence[str]
    stopped: bool
    seconds: float
    computed: float

    @property
    def holds(self) -> bool:
        return not self.stopped and self.percentile(95) <= LIMIT

    def percentile(self, part: float) -> float:
        """Of the latencies; no value between two is made up, so that inf stays what it is."""
        if not self.late:
            return math.inf
        return float(np.percentile(self.late, part, method="higher"))


class Texts:
    """Prompts and answers: real ids in a ring, read from another place for each answer."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)

    def read(self, rng: random.Random, count: int) -> list[int]:
        begin = rng.randrange(len(self._ids))
        turns = math.ceil((begin + count) / len(self._ids))
        return (self._ids * turns)[begin : begin + count]


class Run:
    """One load at one engine; `found` once it is over."""

    def __init__(self, load: Load, texts: Texts, engine: Engine, stream: Stream) -> None:
        self._load, self._texts = load, texts
        self._engine, self._stream = engine, stream
        self._late: list[float] = []
        self._waiting: dict[int, float] = {}
        self._keys = count()
        self._failed: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def found(self, meter: Callable[[], Awaitable[float]]) -> Found:
        """`meter` is read when the measured time begins and ends."""
        load = self._load
        self._begun = time.perf_counter()
        self._from, self._until = self._begun + load.turn, self._begun + load.turn + load.seconds
        for number in range(load.sessions):
            self._start(self._session(number))
        await _until(self._from)
        before, begun = await meter(), time.perf_counter()
        stopped = await self._watched()
        seconds = time.perf_counter() - begun
        computed = await meter() - before
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        late = [*self._late, *(math.inf for _ in self._waiting)]
        return Found(late, self._failed, stopped, seconds, computed)

    async def _watched(self) -> bool:
        """Until the end, or until so many are late that it cannot hold any more: then True."""
        allowed = LATE * self._expected() + 1
        while (now := time.perf_counter()) < self._until + LIMIT:
            waiting = sum(now - due > LIMIT for due in self._waiting.values())
            if sum(late > LIMIT for late in self._late) + waiting > allowed:
                return True
            await asyncio.sleep(min(_LOOK_SECONDS, self._until + LIMIT - now))
        return False

    def _expected(self) -> float:
        tokens = self._load.sessions * self._load.pace * self._load.seconds
        return tokens if self._load.share is None else tokens * self._load.share

    async def _session(self, number: int) -> None:
        """The answers of one session, one after the other."""
        load, texts = self._load, self._texts
        client = Client(session=f"session-{number}", tenant=load.tenant)
        turn = asyncio.Lock()
        for index in count():
            due = self._begun + load.turn * (number / load.sessions + index)
            if due >= self._until:
                return
            await _until(due)
            rng = random.Random(f"{load.seed} {number} {index}")
            ids = texts.read(rng, load.prompt) + texts.read(rng, load.answer)
            if load.share is None:
                self._start(self._streamed(ids[: load.prompt], due))
                continue
            for place in range(load.answer):
                critical = rng.random() < load.share
                if not critical and place % PUSH:
                    continue
                at, before = due + place / load.pace, ids[: load.prompt + place]
                await _until(at)
                if critical:
                    self._start(self._consult(before, at, client, turn))
                elif not turn.locked():
                    self._start(self._push(before, client, turn))

    async def _consult(
        self, ids: list[int], due: float, client: Client, turn: asyncio.Lock
    ) -> None:
        key = self._due(due)
        try:
            async with turn:
                await self._engine.complete(ids, 1, Sampling(), client)
        except CloudError as error:
            self._failed.append(str(error))
            return
        self._came(key, due)

    async def _push(self, ids: list[int], client: Client, turn: asyncio.Lock) -> None:
        async with turn:
            with suppress(CloudError):  # nobody waits for it, and the next consult computes it
                await self._engine.prefill(ids, client)

    async def _streamed(self, prompt: list[int], due: float) -> None:
        """Token i is due i / pace after the answer was; the engine may write ahead of that."""
        dues = [due + place / self._load.pace for place in range(self._load.answer)]
        keys = [self._due(at) for at in dues]
        came = 0
        try:
            async for more in self._stream(prompt, self._load.answer):
                for place in range(came, min(came + more, len(keys))):
                    self._came(keys[place], dues[place])
                came += more
        except CloudError as error:
            self._failed.append(str(error))

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _due(self, at: float) -> int:
        key = next(self._keys)
        if self._from <= at < self._until:
            self._waiting[key] = at
        return key

    def _came(self, key: int, due: float) -> None:
        if self._waiting.pop(key, None) is not None:
            self._late.append(max(0.0, time.perf_counter() - due))


async def _until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.perf_counter()))
