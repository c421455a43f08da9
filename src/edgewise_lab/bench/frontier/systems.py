"""Systems that the frontier times: an edge alone, a pair, the cloud alone, streamed."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from typing import Annotated, Any

import httpx2
import msgspec

from edgewise.completion import ADDED, MOST_SECONDS
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.engines.connections import checked_address
from edgewise.engines.http import not_now, reading
from edgewise.errors import CloudProtocolError, CloudRejected, CloudTimeout, CloudUnavailable
from edgewise.events import Event, Finished, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.generation import Generation
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.routers.base import Router
from edgewise.routers.untrained import MaxProb
from edgewise.servers.base import decoded
from edgewise.servers.openai import COMPLETIONS
from edgewise.servers.replies import Meter, has_ended, only, uncached
from edgewise.testing.link import Link
from edgewise_lab.bench.frontier.billing import CloudRequest, MeasuredAnswer, RecordedCloud
from edgewise_lab.bench.pace import EngineTime, PacedEdge
from edgewise_lab.evaluation.systems import (
    CLOUD_DEADLINE,
    AtPosition,
    Outcome,
    commit_position,
    contexts_of,
    max_answer_tokens,
    outcome_of,
    question_prompt,
    written,
)
from edgewise_lab.evaluation.tasks.base import Question


class Watch:
    """Records an answer's text, times and bytes over a link, from now on."""

    def __init__(self, link: Link | None) -> None:
        self._link, self._before = link, (0, 0) if link is None else (link.up, link.down)
        self._begun = self._last = time.monotonic()
        self._first: float | None = None
        self._gap = 0.0

    def saw(self, text: str) -> None:
        """Some of the answer's text, just now; an empty one shows nothing."""
        if not text:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now
        else:
            self._gap = max(self._gap, now - self._last)
        self._last = now

    def measured(self, grade: Callable[[], Outcome], **more: Any) -> MeasuredAnswer:
        """The answer, which ends now; `more` are other fields of it."""
        link, now = self._link, time.monotonic()
        traffic: dict[str, Any] = {}
        if link is not None:
            traffic = {"sent": link.up - self._before[0], "received": link.down - self._before[1]}
        first = now if self._first is None else self._first
        return MeasuredAnswer(
            outcome=msgspec.structs.replace(grade(), seconds=now - self._begun),
            ttft=first - self._begun,
            gap=self._gap,
            **(traffic | more),
        )


def pair_policy(
    threshold: float, *, speculate: int = 0, max_cloud_tokens: int | None = None
) -> Policy:
    """A pair's policy with a static threshold. A cloud that fails ends it: see `MeasuredSystem`."""
    return Policy(
        threshold=threshold,
        speculate=speculate,
        max_cloud_tokens=max_cloud_tokens,
        deadline=LONGEST_DEADLINE,
        on_cloud_error="raise",
    )


class Timed:
    """Implements `MeasuredSystem` over a `Decoder`."""

    def __init__(
        self,
        edge: PacedEdge,
        max_tokens: int,
        *,
        router: Router,
        policy: Policy,
        cloud: RecordedCloud | None = None,
        link: Link | None = None,
    ) -> None:
        """`link` is that between the two, where its bytes are to be counted."""
        self._edge, self._cloud, self._link = edge, cloud, link
        self._max_tokens = max_tokens
        # It stands for the model behind it.
        model: Any = edge
        self._decoder = Decoder(model, router=router, policy=policy, cloud=cloud)

    def answer(self, question: Question) -> MeasuredAnswer:
        decoder, edge = self._decoder, self._edge
        prompt = question_prompt(decoder.edge.tokenizer, question)
        contexts = contexts_of(decoder.edge, decoder.cloud)
        longest = max_answer_tokens(len(prompt.ids), self._max_tokens, *contexts)
        if self._cloud is not None:
            self._cloud.take()
        before, watch = (edge.decodes, edge.positions), Watch(self._link)
        with decoder.stream(prompt, max_tokens=longest) as events:
            answer = collect(_watched(events, watch))
        cloud = self._cloud
        return watch.measured(
            lambda: outcome_of(question, answer),
            decodes=edge.decodes - before[0],
            positions=edge.positions - before[1],
            **({"sent": 0, "received": 0} if cloud is None else {"requests": cloud.take()}),
        )


def _watched(events: Generation, watch: Watch) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Token | Finished):
            watch.saw(event.text)
        yield event


def timed_edge(edge: PacedEdge, max_tokens: int) -> Timed:
    """The edge alone. Its uncertainty is max-prob's, as in `edge_alone`."""
    return Timed(edge, max_tokens, router=MaxProb(), policy=Policy(cloud_share=0.0))


class TimedCommitPoint:
    """Implements `MeasuredSystem`: as `CommitPoint`, one consult where a choice is first named.

    Where that is was found out before, by an answer of the edge's that is not counted: the time is
    that of a device which knew the place.
    """

    def __init__(
        self,
        model: EdgeModel,
        edge: PacedEdge,
        max_tokens: int,
        *,
        cloud: RecordedCloud,
        speculate: int = 0,
        link: Link | None = None,
    ) -> None:
        """`model` is what is behind `edge`, at its own pace."""
        self._model, self._max_tokens = model, max_tokens
        self._place = AtPosition(None)
        policy = pair_policy(1.0, max_cloud_tokens=1, speculate=speculate)
        self._timed = Timed(
            edge, max_tokens, router=self._place, policy=policy, cloud=cloud, link=link
        )

    def answer(self, question: Question) -> MeasuredAnswer:
        self._place.position = commit_position(self._model, question, self._max_tokens)
        return self._timed.answer(question)


_MOST_BYTES = 16 << 20
_LONGEST_LINE = 1 << 20
_SILENCE_SECONDS, _IDLE_SECONDS = 60.0, 4.0
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
    """An event: some text, and with the last ones the meter; `timings` is llama-server's."""

    choices: list[_Choice] = []
    usage: Meter | None = None
    timings: _Timings | None = None
    error: Any = None


class _Stream(msgspec.Struct):
    """The answer collected from the events of a stream."""

    texts: list[str] = []
    ended: bool = False
    usage: Meter | None = None
    timings: _Timings | None = None


class Streamed:
    """Implements `MeasuredSystem`: `POST /v1/completions` with ids, greedy, streamed.

    llama-server and vLLM speak it, SGLang for one prompt of ids too. The connection is kept from
    answer to answer, as a device's is. Raises a `CloudError` for whatever goes wrong, and says in
    a sentence where an engine does not stream.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        model: str | None = None,
        key: str | None = None,
        link: Link | None = None,
        seconds: EngineTime | None = None,
    ) -> None:
        """`model` is one that the engine at `url` serves; for `seconds` see `RecordedCloud`.

        `link` leads there, where its bytes are to be counted.
        """
        self._url = checked_address(url)
        self._tokenizer, self._max_tokens, self._model = tokenizer, max_tokens, model
        self._link, self._seconds = link, seconds
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(_SILENCE_SECONDS),
            limits=httpx2.Limits(keepalive_expiry=_IDLE_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def answer(self, question: Question) -> MeasuredAnswer:
        prompt = list(question_prompt(self._tokenizer, question).ids)
        watch = Watch(self._link)
        stream = self._ask(prompt, watch)

        def outcome() -> Outcome:
            return written(
                question,
                "".join(stream.texts),
                request.written,
                cut=request.written >= self._max_tokens,
                cloud_tokens=request.written,
                consults=1,
                cached=request.cached,
                computed=request.computed,
            )

        request = self._request(stream, len(prompt))
        return watch.measured(outcome, requests=(request,))

    def _ask(self, prompt: list[int], watch: Watch) -> _Stream:
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            body["model"] = self._model
        found = _Stream(texts=[])
        with self._response(msgspec.json.encode(body)) as response:
            events = _events(response, time.monotonic() + CLOUD_DEADLINE, self._url)
            for data in takewhile(_DONE.__ne__, events):
                with reading(self._url):
                    self._add(found, decoded(data, _Chunk), watch)
            # Read to its end: the connection of one that is broken off is closed.
            deque(events, maxlen=0)
        if not found.ended:
            raise CloudUnavailable(
                f"{self._url!r} broke a streamed answer off", hint="try again shortly"
            )
        return found

    @contextmanager
    def _response(self, body: bytes) -> Generator[httpx2.Response]:
        """The reply's head; a reply that is not a stream is an error of one sentence."""
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
                f"A streamed answer of {self._url!r} broke off ({type(error).__name__})",
                hint="check that it runs",
            ) from error

    def _begun(self, body: bytes) -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        request = self._http.build_request(
            "POST", self._url + COMPLETIONS, content=body, headers=headers
        )
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

    def _add(self, found: _Stream, chunk: _Chunk, watch: Watch) -> None:
        if chunk.error is not None:
            raise CloudUnavailable(
                f"{self._url!r} failed within a streamed answer", hint="try again shortly"
            )
        if chunk.choices:
            choice = only(chunk.choices)
            watch.saw(choice.text)
            found.texts.append(choice.text)
            if choice.finish_reason is not None:
                has_ended(choice.finish_reason)
                found.ended = True
        found.usage = chunk.usage or found.usage
        found.timings = chunk.timings or found.timings

    def _request(self, stream: _Stream, prompt: int) -> CloudRequest:
        """The request by the engine's own meter; raises `CloudProtocolError` for invalid counts."""
        usage, timings = stream.usage or Meter(), stream.timings or _Timings()
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
        elif stream.timings is not None:
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
    """The data of server-sent events, one a line as engines send them."""
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
