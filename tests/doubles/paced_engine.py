"""An engine slowed down to another one's pace: a proxy in front of a real server."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from edgewise_lab.bench.pace import EnginePace

_PATHS = ("/completion", "/completions", "/generate")
"""What writes; all else passes as fast as it comes."""

_OF_ONE_HOP = frozenset(
    {"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"}
)
_LONGEST = 16 << 20
_REMEMBERED = 64
_BYTES_A_TOKEN = 4


def _at(said: Any, *names: str) -> Any:
    """What stands there in an engine's words; None where nothing does."""
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    return said


def _written(said: Any) -> int:
    """Tokens of a whole reply, the end of the sequence included where it is counted."""
    meters = ("timings", "predicted_n"), ("usage", "completion_tokens")
    counts = [_at(said, *names) for names in (*meters, ("meta_info", "completion_tokens"))]
    return next((count for count in counts if count is not None), len(_at(said, "tokens") or ()))


def _computed(said: Any) -> int | None:
    """Prompt tokens that were not in the cache; None where no meter tells."""
    if (count := _at(said, "timings", "prompt_n")) is not None:
        return count
    for meter, cached in (
        ("usage", ("prompt_tokens_details", "cached_tokens")),
        ("meta_info", ("cached_tokens",)),
    ):
        counts = _at(said, meter, "prompt_tokens"), _at(said, meter, *cached)
        if None not in counts:
            return counts[0] - counts[1]
    return None


def _new(said: Any) -> int:
    """Tokens of one event of a stream. An end that is no text took a step all the same."""
    choices = _at(said, "choices") or []
    ids = [*(_at(said, "tokens") or ()), *(i for c in choices for i in _at(c, "token_ids") or ())]
    if ids:
        return len(ids)
    texts = [_at(said, "content"), *(_at(one, "text") for one in choices)]
    texts += [value for c in choices for value in (_at(c, "delta") or {}).values()]
    ended = any(_at(one, "finish_reason") == "stop" for one in choices)
    is_text = any(text and text != "assistant" for text in texts)
    return int(is_text or ended or _at(said, "stop_type") == "eos")


def _units(asked: Any) -> tuple[Sequence[int], int]:
    """The prompt's ids, or the bytes of its text, and how many of them are a token."""
    prompt = _at(asked, "prompt")
    ids = _at(asked, "input_ids") if prompt is None else prompt
    if isinstance(ids, list) and all(isinstance(one, int) for one in ids):
        return ids, 1
    said = _at(asked, "messages") if prompt is None else prompt
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
        asked = _told(body)
        prompt, size = _units(asked)
        common = max((_common(prompt, one) for one in self._earlier), default=0)
        self._earlier.append(prompt)
        return max(1, (len(prompt) - common) // size), bool(_at(asked, "stream"))

    def _whole(self, data: bytes, missing: int) -> float:
        """Seconds that a reply in one piece takes."""
        computed = _computed(said := _told(data))
        return self.pace.of(_written(said), missing if computed is None else computed)

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
            written += sum(_new(_told(data)) for data in _data(event))
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


def _told(data: bytes) -> Any:
    """Of a body; nothing of one that is not understood, or of a stream's `[DONE]`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
