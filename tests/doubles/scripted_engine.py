"""A scripted engine over real HTTP, in any dialect: for tests, faults and load.

    python -m tests.doubles.scripted_engine --port 8080

Its vocabulary is that of `ByteTokenizer`, unless it is told another. It answers at once, with ids
that follow from the whole prefix, so that whoever gets another session's answer notices.
"""

import argparse
import asyncio
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web

from edgewise.edge.base import Tokenizer
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.background import Served
from tests.doubles.engine_dialects import DIALECTS, Dialect, Read, Wanted, Writing

Misbehaviour = Literal["hang", "reset", "error", "busy", "declined", "garbage"]
"""What to do with a request instead of answering it."""


class Twisted(NamedTuple):
    """The right reply, saying something else of what it wrote; a verification writes nothing."""

    how: Callable[[Writing], Writing]


class Edited(NamedTuple):
    """The right reply with its bytes changed, under another status or other headers."""

    how: Callable[[bytes], bytes] = lambda data: data
    status: int = 200
    headers: Mapping[str, str] = {}


class Wire(NamedTuple):
    """Bytes that go onto the connection instead of a reply, `pause` seconds between the pieces.

    Then it is closed.
    """

    pieces: Sequence[bytes]
    pause: float = 0.0


Reply = Callable[[Any], tuple[int, Any]]
"""From a request's JSON body to a status and what is said (bytes as they are)."""


def said(reply: Any, status: int = 200) -> Reply:
    """The same whatever is asked."""
    return lambda body: (status, reply)


class Asked(NamedTuple):
    """A request, and when it began and ended (monotonic)."""

    path: str
    data: bytes
    headers: Mapping[str, str]
    begun: float
    ended: float

    @property
    def body(self) -> Any:
        """Its JSON; SGLang's parameters are among the fields."""
        fields = msgspec.json.decode(self.data or b"{}")
        return fields | fields.get("sampling_params", {})


Misdeed = Misbehaviour | Twisted | Edited | Wire

_STATUS: dict[Misbehaviour, int] = {"error": 500, "busy": 429, "declined": 400}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HANG_SECONDS = 3600.0

# The beginning of a character of UTF-8 that has more bytes.
_INSIDE = re.compile(rb"([\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z")


def reply_to(ids: Sequence[int]) -> int:
    """The next id after a prefix: a letter that depends on every id of it."""
    return 97 + hash(tuple(ids)) % 26


class _Text(msgspec.Struct):
    content: str = ""
    prompt: str = ""


class _Ids(msgspec.Struct):
    tokens: list[int]


class ScriptedEngine(Served):
    """Serves on 127.0.0.1 from a thread of its own. `asked` counts consults, `prefills` the rest.

    `fault` is told the number of each consult and may name what to do with it, `aside` the path of
    any other request; `faults` counts what they did. `running` consults are being answered,
    `abandoned` ones were given up by who asked, `looks` were taken at its health, `strays` counts
    requests for what it does not have, by path. Every reply to a consult has its number as
    `x-request-id` (`scripted-0`, ...). It says that it serves `model`, of `size` ids (None: it does
    not say); with another `tokenizer`, or a `mark` other than 0, its vocabulary is another. It
    knows only who has the `key`, where there is one. Told not to, it does not detokenise;
    `detokenized` counts requests for that. `requests` are the last of all kinds. A path says what
    `replies` has for it; every request takes `pause` seconds.
    """

    def __init__(
        self,
        *,
        script: Callable[[Sequence[int]], int] = reply_to,
        fault: Callable[[int], Misdeed | None] = lambda number: None,
        seconds: float = 0.0,
        port: int = 0,
        dialect: Dialect = "llama-server",
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`seconds` a consult takes; port 0 is any free one."""
        super().__init__()
        self.script, self.fault, self.seconds = script, fault, seconds
        self.aside: Callable[[str], Misdeed | None] = lambda path: None
        self.asked = self.prefills = self.running = self.abandoned = 0
        self.faults = self.looks = 0
        self.strays = Counter[str]()
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self.model, self.mark = "scripted", 0
        self.detokenized = 0
        self.detokenizes = True
        self.key: str | None = None
        self.size: int | None = None
        self.speaks = dialect
        self.keeps_back = dialect == "llama-server"
        self._dialect = DIALECTS[dialect]
        self.requests = deque[Asked](maxlen=1000)
        self.replies: dict[str, Reply] = {}
        self.pause = 0.0
        self.port = port
        self.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        """What was asked for."""
        return [asked.path for asked in self.requests]

    @property
    def listening(self) -> bool:
        """Whether it can be reached."""
        return bool(self.runners)

    def stop(self) -> None:
        """Close every connection and stop listening; `start` brings it back on the same port."""
        self.hang_up()

    def start(self) -> None:
        """Listen again."""
        self.port = self.serve(
            [
                web.get("/v1/models", self._models),
                web.post(self._dialect.path, self._complete),
                web.get("/health", self._health),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.route("*", "/{path:.*}", self._stray),
            ],
            port=self.port,
            middlewares=[self._let_in],
        )

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401, body=b'{"error": {"message": "Invalid API key"}}')
        begun, data = time.monotonic(), await request.read()
        try:
            await asyncio.sleep(self.pause)
            if (reply := self.replies.get(request.path)) is None:
                return await handler(request)
            status, body = reply(msgspec.json.decode(data) if data else None)
            if isinstance(body, bytes):
                return web.Response(body=body, status=status)
            return json_reply(body, status)
        finally:
            ended = time.monotonic()
            self.requests.append(Asked(request.path, data, request.headers, begun, ended))

    async def _health(self, request: web.Request) -> web.StreamResponse:
        self.looks += 1
        return await self._reply(request, {"status": "ok"}, self.aside(request.path))

    async def _models(self, request: web.Request) -> web.StreamResponse:
        meta = {} if self.size is None else {"meta": {"n_vocab": self.size}}
        owner = self._dialect.owner
        served = {"data": [{"id": self.model, "owned_by": owner, **meta}]}
        return await self._reply(request, served, self.aside(request.path))

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        said = msgspec.json.decode(await request.read(), type=_Text)
        ids = self.tokenizer.encode(said.content or said.prompt)
        tokens = {"tokens": [token ^ self.mark for token in ids]}
        return await self._reply(request, tokens, self.aside(request.path))

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        if not self.detokenizes:
            return web.Response(status=404, body=b"no such path")
        known, data = self.tokenizer, b""
        self.detokenized += 1
        for asked in msgspec.json.decode(await request.read(), type=_Ids).tokens:
            token = asked ^ self.mark
            text = known.special.get(token)
            inside = token < known.size
            data += text.encode() if text else known.piece(token) if inside else b""
        said = {self._dialect.spelled: data.decode("utf-8", "replace")}
        return await self._reply(request, said, self.aside(request.path))

    async def _stray(self, request: web.Request) -> web.StreamResponse:
        self.strays[request.path] += 1
        return web.Response(status=404, body=b"no such path")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = self._dialect.wanted(await request.read())
        except msgspec.ValidationError as error:
            return web.Response(status=400, body=str(error).encode())
        if asked.n == 0:
            self.prefills += 1
            return json_reply({"tokens": []})
        number, self.asked = self.asked, self.asked + 1
        self.running += 1
        try:
            reply = await self._answer(request, asked, self.fault(number))
            reply.headers.setdefault("x-request-id", f"scripted-{number}")
            return reply
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.running -= 1

    async def _answer(
        self, request: web.Request, asked: Wanted, fault: Misdeed | None
    ) -> web.StreamResponse:
        if self.seconds and not isinstance(fault, str):
            await asyncio.sleep(self.seconds)
        if asked.verify:
            read = self._dialect.read(self._read(asked), len(asked.ids) + bool(asked.prompts))
            read = self._of_whole_characters(read)
            return await self._reply(request, read, None if isinstance(fault, Twisted) else fault)
        writing = self._plain(asked) if asked.plain else self._written(asked)
        if isinstance(fault, Twisted):
            self.faults += 1
            # JSON as it is found: with NaN, and integers of any size.
            body = json.dumps(self._dialect.reply(fault.how(writing))).encode()
            return web.Response(body=body, content_type="application/json")
        written = self._of_whole_characters(self._dialect.reply(writing))
        return await self._reply(request, written, fault)

    def _of_whole_characters(self, said: Any) -> Any:
        """As llama-server: a token after which a character is not whole yet has no row."""
        if not self.keeps_back:
            return said
        text, rows = b"", list[object]()
        for token, row in zip(said["tokens"], said["completion_probabilities"], strict=True):
            text += self.tokenizer.piece(token)
            rows += [] if _INSIDE.search(text) else [row]
        return said | {"completion_probabilities": rows}

    def _read(self, asked: Wanted) -> list[Read]:
        """The id that it would write has nearly all, the ids after that one less and less."""
        rows: list[Read] = []
        for place in range(len(asked.ids) - asked.verify, len(asked.ids)):
            prefix = asked.ids[:place]
            if asked.prompts:
                prefix = asked.prompts[len(rows)]
            top = self._likeliest(prefix, 20)
            token = top[0][0] if asked.prompts else asked.ids[place]
            logprob = dict(top).get(token, -9999.0)
            rows.append(Read(token, logprob, [*top]))
        return rows

    def _likeliest(self, prefix: Sequence[int], count: int) -> list[tuple[object, float]]:
        best, size = self.script(prefix), self.tokenizer.size
        return [((best + step) % size, -0.1 - 3 * (step > 0) - step) for step in range(count)]

    def _plain(self, asked: Wanted) -> Writing:
        top = self._likeliest(asked.ids, self.tokenizer.size)
        token, logprob = next(one for one in top if one[0] in range(32, 127))
        listed = list[tuple[object, object]](top[: asked.top])
        return Writing(ids=[token], logprobs=[logprob], top=[listed], cached=len(asked.ids) - 1)

    def _written(self, asked: Wanted) -> Writing:
        ids = list(asked.ids)
        written: list[int] = []
        while len(written) < asked.n:
            written.append(self.script(ids))
            ids.append(written[-1])
            if written[-1] in self.tokenizer.eos_ids:
                break
        return Writing(
            ids=list(written),
            logprobs=[-0.1] * len(written),
            top=[[(token, -0.1)] for token in written],
            ended=written[-1] in self.tokenizer.eos_ids,
            cached=len(asked.ids) - 1,
        )

    async def _reply(
        self, request: web.Request, said: object, fault: Misdeed | None
    ) -> web.StreamResponse:
        self.faults += fault is not None
        return await replied(request, said, fault)


async def replied(request: web.Request, said: object, fault: Misdeed | None) -> web.StreamResponse:
    """What is said, or what is done instead."""
    if fault is None:
        return json_reply(said)
    if isinstance(fault, Edited):
        headers = {"Content-Type": "application/json", **fault.headers}
        body = fault.how(msgspec.json.encode(said))
        return web.Response(status=fault.status, headers=headers, body=body)
    if isinstance(fault, Wire):
        return await on_the_wire(request, fault)
    assert not isinstance(fault, Twisted), "only what is written can be twisted"
    if fault == "hang":
        await asyncio.sleep(HANG_SECONDS)
    if fault == "reset":
        assert request.transport is not None
        request.transport.abort()
        # aiohttp wants a reply all the same; nobody is there to read it.
        return web.Response(status=_STATUS["error"])
    if fault == "garbage":
        return web.Response(body=b'{"tokens": "none", \xff', content_type="application/json")
    return web.Response(status=_STATUS[fault], body=b"as the script says")


async def on_the_wire(request: web.Request, wire: Wire) -> web.StreamResponse:
    transport = request.transport
    assert transport is not None
    for number, piece in enumerate(wire.pieces):
        if number and wire.pause:
            await asyncio.sleep(wire.pause)
        if transport.is_closing():
            break
        transport.write(piece)
    transport.close()
    return web.Response(status=_STATUS["error"])


def json_reply(described: object, status: int = 200) -> web.Response:
    body = msgspec.json.encode(described)
    return web.Response(body=body, status=status, content_type="application/json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--seconds", type=float, default=0.0, help="a consult takes")
    options = parser.parse_args()
    engine = ScriptedEngine(seconds=options.seconds, port=options.port)
    print(engine.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
