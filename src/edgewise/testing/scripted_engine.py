"""A scripted engine over real HTTP, in llama-server's dialect: for tests, faults and load.

    python -m edgewise.testing.scripted_engine --port 8080

Its vocabulary is that of `ByteTokenizer`. It answers at once, with ids that follow from the whole
prefix, so that whoever gets another session's answer notices.
"""

import argparse
import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from aiohttp import web

from edgewise.testing.scripted_edge import ByteTokenizer

Misbehaviour = Literal["hang", "reset", "error", "busy", "declined", "garbage"]
"""What to do with a request instead of answering it."""

_STATUS: dict[Misbehaviour, int] = {"error": 500, "busy": 429, "declined": 400}

HANG_SECONDS = 3600.0
_MAX_BODY = 8 << 20


def reply_to(ids: Sequence[int]) -> int:
    """The next id after a prefix: a letter that depends on every id of it."""
    return 97 + hash(tuple(ids)) % 26


class _Completion(msgspec.Struct):
    prompt: list[int]
    n_predict: int
    n_probs: int = 0


class _Text(msgspec.Struct):
    content: str


class ScriptedEngine:
    """Serves on 127.0.0.1 from a thread of its own. `asked` counts consults, `prefills` the rest.

    `fault` is told the number of each consult and may name what to do with it. `running` consults
    are being answered, `abandoned` ones were given up by who asked. Every reply to a consult has
    its number as `x-request-id` (`scripted-0`, ...). It says that it serves `model`, of `size` ids
    (None: it does not say); with a `mark` other than 0 its vocabulary is another.
    """

    def __init__(
        self,
        *,
        script: Callable[[Sequence[int]], int] = reply_to,
        fault: Callable[[int], Misbehaviour | None] = lambda number: None,
        seconds: float = 0.0,
        port: int = 0,
    ) -> None:
        """`seconds` a consult takes; port 0 is any free one."""
        self.script, self.fault, self.seconds = script, fault, seconds
        self.asked = self.prefills = self.running = self.abandoned = 0
        self.model, self.mark = "scripted", 0
        self.size: int | None = None
        self._tokenizer = ByteTokenizer()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = self._do(self._start(port))

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it can be reached."""
        return self._runner is not None

    def stop(self) -> None:
        """Close every connection and stop listening; `start` brings it back on the same port."""
        self._do(self._stop())

    def start(self) -> None:
        """Listen again."""
        self._do(self._start(self.port))

    def close(self) -> None:
        """Stop for good."""
        if self._runner is not None:
            self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, port: int) -> int:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/completion", self._complete)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _models(self, request: web.Request) -> web.Response:
        meta = {} if self.size is None else {"meta": {"n_vocab": self.size}}
        return _json({"data": [{"id": self.model, "owned_by": "llamacpp", **meta}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        text = msgspec.json.decode(await request.read(), type=_Text).content
        return _json({"tokens": [token ^ self.mark for token in self._tokenizer.encode(text)]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=_Completion)
        if asked.n_predict == 0:
            self.prefills += 1
            return _json({"tokens": []})
        number, self.asked = self.asked, self.asked + 1
        self.running += 1
        try:
            reply = await self._answer(request, asked, self.fault(number))
            reply.headers["x-request-id"] = f"scripted-{number}"
            return reply
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.running -= 1

    async def _answer(
        self, request: web.Request, asked: _Completion, fault: Misbehaviour | None
    ) -> web.StreamResponse:
        if fault is not None:
            return await self._fail(request, fault)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return _json(self._written(asked))

    def _written(self, asked: _Completion) -> dict[str, object]:
        ids = list(asked.prompt)
        written: list[int] = []
        while len(written) < asked.n_predict:
            written.append(self.script(ids))
            ids.append(written[-1])
            if written[-1] in self._tokenizer.eos_ids:
                break
        ended = written[-1] in self._tokenizer.eos_ids
        return {
            "tokens": written,
            "completion_probabilities": [
                {"id": token, "logprob": -0.1, "top_logprobs": [{"id": token, "logprob": -0.1}]}
                for token in written
            ],
            "timings": {"cache_n": len(asked.prompt) - 1, "prompt_n": 1},
            "stop_type": "eos" if ended else "limit",
        }

    async def _fail(self, request: web.Request, fault: Misbehaviour) -> web.StreamResponse:
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


def _json(described: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(described), content_type="application/json")


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
