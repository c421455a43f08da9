"""The cloud model alone, streamed by its engine: greedy `POST /v1/completions` with token ids."""

import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from typing import Annotated, Any

import httpx2
import msgspec

from edgewise.completion import ADDED, MOST_SECONDS
from edgewise.edge.base import Tokenizer
from edgewise.engines.connections import checked_address
from edgewise.engines.http import not_now, reading
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout, CloudUnavailable
from edgewise.servers.base import decoded
from edgewise.servers.http import client_options, why
from edgewise.servers.openai import COMPLETIONS
from edgewise.servers.replies import Meter, has_ended, only, uncached
from edgewise_lab.bench.frontier.billing import CloudRequest
from edgewise_lab.bench.pace import EngineTime
from edgewise_lab.evaluation.systems import (
    CLOUD_DEADLINE,
    Outcome,
    Saw,
    question_prompt,
    unseen,
    written,
)
from edgewise_lab.evaluation.tasks.base import Question

_MOST_BYTES = 16 << 20
_LONGEST_LINE = 1 << 20
_SILENCE_SECONDS = 60.0
_EXCERPT = 200
_DATA, _DONE = b"data:", b"[DONE]"

_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1000 * MOST_SECONDS)]


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: _Milliseconds = 0.0
    predicted_ms: _Milliseconds = 0.0


class _Chunk(msgspec.Struct):
    """One event: some text; `usage` comes with the last, `timings` only from llama-server."""

    choices: list[_Choice] = []
    usage: Meter | None = None
    timings: _Timings | None = None
    error: Any = None


class Streamed:
    """A `System` in which the cloud's engine streams whole answers; `take` returns its requests.

    llama-server, vLLM and SGLang can stream. The connection stays open between answers, until
    `close`. Any failure raises a `CloudError`, and so does an engine that does not stream.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        model: str | None = None,
        key: str | None = None,
        seconds: EngineTime | None = None,
    ) -> None:
        """`url` is the engine's; `model` names a model that it serves; `key` is an API key.

        `seconds` computes `engine_seconds`; None takes the engine's report (llama-server's only).
        """
        self._url = checked_address(url)
        self._tokenizer, self._max_tokens, self._model = tokenizer, max_tokens, model
        self._seconds, self._asked = seconds, list[CloudRequest]()
        self._http = httpx2.Client(**client_options(key, httpx2.Timeout(_SILENCE_SECONDS)))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def take(self) -> tuple[CloudRequest, ...]:
        """Return the requests since the last call, oldest first, and forget them.

        Each answer takes one request. A request that failed is left out.
        """
        asked, self._asked[:] = tuple(self._asked), []
        return asked

    def answer(self, question: Question, saw: Saw = unseen) -> Outcome:
        prompt = list(question_prompt(self._tokenizer, question).ids)
        begun = time.monotonic()
        chunks = self._ask(prompt, saw)
        request = self._request(chunks, len(prompt))
        self._asked.append(request)
        return written(
            question,
            "".join(choice.text for chunk in chunks for choice in chunk.choices),
            request.written,
            cut=request.written >= self._max_tokens,
            cloud_tokens=request.written,
            consults=1,
            cached=request.cached,
            computed=request.computed,
            seconds=time.monotonic() - begun,
        )

    def _ask(self, prompt: list[int], saw: Saw) -> list[_Chunk]:
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            body["model"] = self._model
        chunks: list[_Chunk] = []
        with self._response(msgspec.json.encode(body)) as response:
            events = _events(response, time.monotonic() + CLOUD_DEADLINE, self._url)
            for data in takewhile(_DONE.__ne__, events):
                with reading(self._url):
                    chunks.append(decoded(data, _Chunk))
                    if chunks[-1].error is not None:
                        raise CloudUnavailable(
                            f"{self._url!r} failed within a streamed answer",
                            hint="try again shortly",
                        )
                    if chunks[-1].choices:
                        choice = only(chunks[-1].choices)
                        has_ended(choice.finish_reason)
                        saw(choice.text)
            # Read to the end: a response that is left unread costs the connection.
            deque(events, maxlen=0)
        if not any(one.finish_reason for chunk in chunks for one in chunk.choices):
            raise CloudUnavailable(
                f"{self._url!r} broke a streamed answer off", hint="try again shortly"
            )
        return chunks

    @contextmanager
    def _response(self, body: bytes) -> Generator[httpx2.Response]:
        """Yield the response, its body unread. Raises a `CloudError` for any HTTP failure."""
        try:
            with closing(self._begun(body)) as response:
                self._require_stream(response)
                yield response
        except httpx2.TimeoutException as error:
            raise CloudTimeout(
                f"{self._url!r} was silent for {_SILENCE_SECONDS:g} s in a streamed answer."
            ) from error
        except httpx2.HTTPError as error:
            raise CloudUnavailable(
                f"A streamed answer of {self._url!r} broke off ({why(error)})",
                hint="check that it runs",
            ) from error

    def _begun(self, body: bytes) -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        url = self._url + COMPLETIONS
        request = self._http.build_request("POST", url, content=body, headers=headers)
        try:
            return self._http.send(request, stream=True)
        except httpx2.RemoteProtocolError:
            # A kept connection that the engine was just closing: it has not seen the request.
            return self._http.send(request, stream=True)

    def _require_stream(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status != 200:
            problem = not_now(self._url, status)
            said = next(response.iter_bytes(_EXCERPT), b"").decode("utf-8", "replace")
            raise problem or CloudRejected(
                f"{self._url!r} declined to stream an answer to token ids (HTTP {status}: "
                f"{said!r})",
                hint="name an engine that does, llama-server or vLLM",
            )
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise CloudProtocolError(
                f"{self._url!r} does not stream its answers (it sent {kind[:100]!r})",
                hint="name an engine that does, llama-server or vLLM",
            )

    def _request(self, chunks: list[_Chunk], prompt: int) -> CloudRequest:
        """Return the request with the engine's counts. Raises `CloudProtocolError` if invalid."""
        usage = next((one.usage for one in reversed(chunks) if one.usage), Meter())
        timed = next((one.timings for one in reversed(chunks) if one.timings), None)
        timings = timed or _Timings()
        written = usage.completion_tokens
        if written is None or not 0 < written <= self._max_tokens:
            raise CloudProtocolError(
                f"{self._url!r} streamed an answer of {written} tokens, by its own count, where at "
                f"most {self._max_tokens} were asked for."
            )
        billed = prompt if usage.prompt_tokens is None else usage.prompt_tokens
        if not prompt <= billed <= prompt + ADDED:
            raise CloudProtocolError(
                f"{self._url!r} read {billed} tokens where {prompt} were sent."
            )
        cached = usage.cached if timings.cache_n is None else timings.cache_n
        computed = timings.prompt_n
        if computed is None:
            computed = uncached(usage.prompt_tokens, usage.cached)
        for count in (cached, computed):
            if count is not None and not 0 <= count <= billed:
                raise CloudProtocolError(f"{self._url!r} counts {count} of {billed} tokens.")
        taken = None
        if self._seconds is not None:
            taken = self._seconds(written, billed if computed is None else computed)
        elif timed is not None:
            taken = (timings.prompt_ms + timings.predicted_ms) / 1000
        return CloudRequest(
            prompt=billed,
            seen=0,
            written=written,
            cached=cached,
            computed=computed,
            engine_seconds=taken,
        )


def _events(response: httpx2.Response, end: float, url: str) -> Iterator[bytes]:
    """Yield each event's data. Raises a `CloudError` for too much data, or past the time `end`."""
    left, size = b"", 0
    for piece in response.iter_bytes():
        size += len(piece)
        *lines, left = (left + piece).split(b"\n")
        if size > _MOST_BYTES or len(left) > _LONGEST_LINE:
            raise CloudProtocolError(f"{url!r} streamed more than an answer can be.")
        if time.monotonic() > end:
            raise CloudTimeout(f"{url!r} did not end an answer within {CLOUD_DEADLINE:g} s.")
        for line in lines:
            if line.startswith(_DATA):
                yield line.removeprefix(_DATA).strip()
