"""Edge models, engines and clouds slowed down to the pace of other ones."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import msgspec
import numpy as np
from aiohttp import web

from edgewise.cloud.base import CloudModel, CloudSession, WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Pace(NamedTuple):
    """`seconds` of a forward pass over `ids` ids, at some sizes; in between it is linear."""

    ids: tuple[int, ...]
    seconds: tuple[float, ...]

    def of(self, ids: int) -> float:
        """Seconds of a forward pass; in proportion beyond the largest size."""
        beyond = max(1.0, ids / self.ids[-1])
        return beyond * float(np.interp(ids, self.ids, self.seconds))

    def times(self, factor: float) -> "Pace":
        """That of a model so many times as slow."""
        return Pace(self.ids, tuple(factor * seconds for seconds in self.seconds))


UNPACED = Pace((1,), (0.0,))

HALF_BILLION = Pace(_SIZES, (0.029, 0.050, 0.069, 0.092, 0.144, 0.236, 0.441, 0.85))
"""Qwen2.5-0.5B in 4 bits on two cores of a server (random weights; `measured` gave it)."""


def measured(model: EdgeModel, repeats: int = 7) -> Pace:
    """The pace of a model here, after 128 ids. It needs a context of 256."""
    ids = [int(i) for i in np.random.default_rng(0).integers(10, model.tokenizer.size // 2, 256)]
    session = model.session(Needs.HIDDEN)
    medians: list[float] = []
    try:
        session.open(ids[:128])
        session.step()
        for size in _SIZES:
            taken: list[float] = []
            for _ in range(repeats):
                session.rewind(128)
                session.extend(ids[128 : 128 + size])
                begun = time.perf_counter()
                session.step()
                taken.append(time.perf_counter() - begun)
            medians.append(median(taken))
    finally:
        session.close()
    return Pace(_SIZES, tuple(medians))


class PacedEdge:
    """Implements `EdgeModel`: `model` where no pass is faster than `pace`.

    `decodes` counts the passes, `positions` the ids that they were over. A session begins with
    nothing cached, whatever `model` kept of earlier ones: a prompt costs what it costs on its own.
    """

    def __init__(self, model: EdgeModel, pace: Pace) -> None:
        self.decodes = self.positions = 0
        self.pace = pace
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "_PacedSession":
        return _PacedSession(self, self._model.session(needs, top=top))


class _PacedSession:
    def __init__(self, edge: PacedEdge, session: EdgeSession) -> None:
        self._edge, self._session = edge, session
        self._computed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def open(self, ids: Sequence[int]) -> int:
        self._computed = 0
        return self._session.open(ids)

    def step(self) -> Step:
        begun = time.monotonic()
        step = self._session.step()
        self._slow_down(begun)
        return step

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        begun = time.monotonic()
        steps = self._session.steps(ids)
        self._slow_down(begun)
        return steps

    def _slow_down(self, begun: float) -> None:
        ids = self._session.position - self._computed
        self._computed = self._session.position
        self._edge.decodes += 1
        self._edge.positions += ids
        time.sleep(max(0.0, begun + self._edge.pace.of(ids) - time.monotonic()))

    def rewind(self, position: int) -> None:
        self._session.rewind(position)
        self._computed = min(self._computed, position)


_PATHS = ("/completion", "/completions", "/generate")
"""What writes; all else passes as fast as it comes."""

_OF_ONE_HOP = frozenset(
    {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}
)
_LONGEST = 16 << 20
_REMEMBERED = 64
_BYTES_A_TOKEN = 4


class EnginePace(NamedTuple):
    """Seconds until a request's first token, for each further one, for each prompt token computed.

    A reply of n tokens takes `first + (n - 1) token`, and `read` times what its prompt lacked in
    the engine's cache. Requests side by side do not slow each other down.
    """

    first: float = 0.035
    token: float = 0.027
    read: float = 0.0002

    def of(self, tokens: int, computed: int) -> float:
        """Seconds of a reply."""
        write = self.first + (tokens - 1) * self.token if tokens else 0.0
        return self.read * computed + write


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Timings(msgspec.Struct):
    prompt_n: int | None = None
    predicted_n: int | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] = {}
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Meta(msgspec.Struct):
    """As SGLang puts it."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class _Said(msgspec.Struct):
    """What engines say of themselves in a reply, or in one event of a stream."""

    timings: _Timings | None = None
    usage: _Usage | None = None
    meta_info: _Meta | None = None
    choices: list[_Choice] = []
    content: str | None = None
    tokens: list[int] | None = None
    stop_type: str | None = None

    @property
    def written(self) -> int:
        """Tokens of a whole reply, the end of the sequence included where it is counted."""
        meters = (
            self.timings.predicted_n if self.timings else None,
            self.usage.completion_tokens if self.usage else None,
            self.meta_info.completion_tokens if self.meta_info else None,
        )
        known = [count for count in meters if count is not None]
        return known[0] if known else len(self.tokens or ())

    @property
    def computed(self) -> int | None:
        """Prompt tokens that were not in the cache; None where no meter tells."""
        if self.timings is not None and self.timings.prompt_n is not None:
            return self.timings.prompt_n
        usage = self.usage or _Usage()
        found = usage.prompt_tokens_details or _Cached()
        counts = (usage.prompt_tokens, found.cached_tokens)
        if self.meta_info is not None:
            counts = (self.meta_info.prompt_tokens, self.meta_info.cached_tokens)
        prompt, cached = counts
        return None if prompt is None or cached is None else prompt - cached

    @property
    def new(self) -> int:
        """Tokens of one event of a stream. An end that is no text took a step all the same."""
        ids = [*(self.tokens or ()), *(i for c in self.choices for i in c.token_ids or ())]
        if ids:
            return len(ids)
        texts = [self.content, *(c.text for c in self.choices)]
        texts += [value for c in self.choices for value in c.delta.values() if value != "assistant"]
        ended = self.stop_type == "eos" or any(c.finish_reason == "stop" for c in self.choices)
        return int(any(texts) or ended)


class _Asked(msgspec.Struct):
    prompt: Any = None
    input_ids: list[int] | None = None
    messages: Any = None
    stream: bool = False

    @property
    def units(self) -> tuple[Sequence[int], int]:
        """The prompt's ids, or the bytes of its text, and how many of them are a token."""
        ids = self.input_ids if self.prompt is None else self.prompt
        if isinstance(ids, list) and all(isinstance(one, int) for one in ids):
            return ids, 1
        said = self.messages if self.prompt is None else self.prompt
        return msgspec.json.encode(said), _BYTES_A_TOKEN


class PacedEngine:
    """Forwards to the engine at `url` until closed; its replies leave no sooner than `pace` says.

    What a prompt lacked in the cache is as the reply's own meter has it. A stream begins before
    the meter tells: there it is what no earlier prompt began with, four bytes of text a token.
    Runs in a thread of its own. `asked` counts the replies that were paced.
    """

    def __init__(self, url: str, pace: EnginePace | None = None) -> None:
        self.pace = pace or EnginePace()
        self.asked = 0
        self._target = url.rstrip("/")
        self._earlier: deque[Sequence[int]] = deque(maxlen=_REMEMBERED)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._http, self._runner = self._do(self._start())

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def close(self) -> None:
        """Close every connection and stop."""
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> tuple[aiohttp.ClientSession, web.AppRunner]:
        app = web.Application(client_max_size=_LONGEST)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            # A line of a stream may be as long as a prompt.
            read_bufsize=_LONGEST,
        )
        return http, runner

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        begun = self._loop.time()
        body = await request.read()
        writes = request.method == "POST" and request.path.endswith(_PATHS)
        missing, streams = self._asked_for(body) if writes else (0, False)
        try:
            async with self._http.request(
                request.method,
                self._target + request.raw_path,
                data=body or None,
                headers=_passed_on(request.headers),
                allow_redirects=False,
            ) as reply:
                if streams and reply.status == 200:
                    return await self._streamed(request, reply, begun, missing)
                data = await reply.read()
                if writes and reply.status == 200:
                    self.asked += 1
                    await self._until(begun + self._whole(data, missing))
                return web.Response(
                    status=reply.status, body=data, headers=_passed_on(reply.headers)
                )
        except aiohttp.ClientConnectionError as error:
            return web.Response(status=502, text=f"{self._target} cannot be reached: {error}")

    def _asked_for(self, body: bytes) -> tuple[int, bool]:
        """Prompt tokens that no earlier request had, and whether a stream is wanted."""
        try:
            asked = msgspec.json.decode(body, type=_Asked)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # The engine says what is wrong with it.
            return 0, False
        prompt, size = asked.units
        common = max((_common(prompt, one) for one in self._earlier), default=0)
        self._earlier.append(prompt)
        return max(1, (len(prompt) - common) // size), asked.stream

    def _whole(self, data: bytes, missing: int) -> float:
        """Seconds that a reply in one piece takes."""
        said = _told(data)
        computed = missing if said.computed is None else said.computed
        return self.pace.of(said.written, computed)

    async def _streamed(
        self, request: web.Request, reply: aiohttp.ClientResponse, begun: float, missing: int
    ) -> web.StreamResponse:
        """Event by event: each leaves when its last token would have been written."""
        self.asked += 1
        passed = web.StreamResponse(status=reply.status, headers=_passed_on(reply.headers))
        await passed.prepare(request)
        written, event = 0, b""
        async for line in reply.content:
            event += line
            if line.strip():
                continue
            written += sum(_told(data).new for data in _data(event))
            await self._until(begun + self.pace.of(written, missing))
            await passed.write(event)
            event = b""
        if event:
            await passed.write(event)
        await passed.write_eof()
        return passed

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._loop.time()))


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_HOP}


def _data(event: bytes) -> Iterator[bytes]:
    """What an event of a stream carries."""
    for line in event.splitlines():
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").strip()


def _told(data: bytes) -> _Said:
    """Of a reply; nothing of one that is not understood, or of a stream's `[DONE]`."""
    try:
        return msgspec.json.decode(data, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Said()


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


Delay = Callable[[int, int], float]
"""From tokens written and prompt tokens computed to the seconds that a completion is held back."""


class LateCloud(WrappedCloud):
    """Implements `CloudModel`: `cloud`, each of whose completions is held back for a `delay`.

    Faults come as they do. Consults are held back side by side, as on a way that is long.
    """

    def __init__(self, cloud: CloudModel, delay: Delay) -> None:
        super().__init__(cloud)
        self._delay = delay

    def open(self, prompt: Prompt) -> "_LateSession":
        """A session that answers late."""
        return _LateSession(self.cloud.open(prompt), self._delay)


class _LateSession(WrappedSession):
    def __init__(self, session: CloudSession, delay: Delay) -> None:
        super().__init__(session)
        self._delay = delay

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        late: Future[Completion] = Future()
        asked = super().ask(ids, n, sampling, deadline, sent)
        late.add_done_callback(lambda _: asked.cancel() if late.cancelled() else None)
        asked.add_done_callback(lambda done: self._hold(done, late, len(ids)))
        return late

    def _hold(self, done: "Future[Completion]", late: "Future[Completion]", prompt: int) -> None:
        if done.cancelled() or done.exception() is not None:
            _settle(late, done)
            return
        completion = done.result()
        computed = prompt if completion.computed is None else completion.computed
        timer = threading.Timer(self._delay(len(completion.ids), computed), _settle, (late, done))
        timer.daemon = True
        timer.start()


def _settle(made: "Future[Completion]", done: "Future[Completion]") -> None:
    """Give `made` the outcome of `done`, unless nobody waits for it any more."""
    if done.cancelled() or not made.set_running_or_notify_cancel():
        made.cancel()
    elif (error := done.exception()) is not None:
        made.set_exception(error)
    else:
        made.set_result(done.result())
