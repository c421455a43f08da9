"""A scripted API that takes text, over real HTTP, in any dialect: for tests and faults.

It behaves as the API's documents say, which nobody has held against the API itself.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web

from edgewise.edge.vocabulary import common_prefix
from edgewise.prompts import Message
from tests.background import Served
from tests.doubles.scripted_engine import Edited, Wire, json_reply, replied
from tests.doubles.text_forms import FORMS, THINK, Wish, Written, Wrong, templated

Habit = Literal["exact", "echo", "strip", "restart", "refuse"]
"""What becomes of an answer that was begun.

It goes on; writes it again first; drops the blanks where it goes on; begins its own; declines.
"""

Script = Callable[[Sequence[Message], str], str]
"""From messages and what was answered so far to the rest of the answer."""

PREFILL = "This model does not support assistant message prefill."
"""How an API declines an answer that was begun."""

_TOKEN = re.compile(r"\s?[^\s]{1,4}|\s")


class Retold(NamedTuple):
    """The right reply, saying something else."""

    how: Callable[[Any], object]


TextMisdeed = Literal["hang", "reset"] | Edited | Wire | Retold


def _finished(reason: str, **message: object) -> Retold:
    def retold(reply: Any) -> object:
        """Ollama says why at the top, others in the choice."""
        choice = reply["choices"][0] if "choices" in reply else reply
        named = [name for name in ("done_reason", "stop_type") if name in choice]
        changed = {**choice, (named or ["finish_reason"])[0]: reason}
        if "message" in choice:
            changed["message"] = {**choice["message"], **message}
        return {**reply, "choices": [changed]} if "choices" in reply else changed

    return Retold(retold)


FILTERED = _finished("content_filter", content="")
TOOL_CALL = _finished(
    "tool_calls",
    content=None,
    tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}],
)
HTML = Edited(
    lambda _: b"<!DOCTYPE html><title>Sign in</title>", headers={"Content-Type": "text/html"}
)
STREAM = Edited(
    lambda data: b"data: " + data + b"\n\ndata: [DONE]\n\n",
    headers={"Content-Type": "text/event-stream"},
)
BUSY = Edited(lambda _: b'{"error": {"message": "Rate limit reached"}}', status=429)


def tokens(text: str) -> list[str]:
    """In pieces of a blank and four other characters, as which it is counted and written."""
    return _TOKEN.findall(text)


def numbers(messages: Sequence[Message], answer: str) -> str:
    """Counts in words from one to ten: the rest behind `answer`, or all of it."""
    whole = "one two three four five six seven eight nine ten"
    return whole[len(answer) :] if whole.startswith(answer) else whole


class ScriptedText(Served):
    """Serves on 127.0.0.1 from a thread of its own, as `dialect` does.

    `fault` is told the number of each consult and may name what to do with it. `asked` are the
    consults' wishes, `requests` path and body of every POST. It serves `models`, the first where
    it does not look at the name; it wants `key` where it has one, does not know the fields
    `declines`, counts what was `cached`, `thinks` unless it is told not to, and takes the
    temperature `only`.
    """

    def __init__(
        self,
        dialect: str = "chat",
        *,
        script: Script = numbers,
        habit: Habit = "exact",
        fault: Callable[[int], TextMisdeed | None] = lambda number: None,
        seconds: float = 0.0,
        port: int = 0,
        base: str = "",
        bare: bool = False,
    ) -> None:
        """`seconds` a consult takes; port 0 is any free one.

        `base` is where its paths begin; where it is `bare` they have no `/v1`.
        """
        super().__init__()
        self.script, self.habit, self.fault, self.seconds = script, habit, fault, seconds
        self.models = ["scripted"]
        self.key: str | None = None
        self.declines: frozenset[str] = frozenset()
        self.only: float | None = None
        self.cached, self.thinks = True, False
        self.asked: list[Wish] = []
        self.requests: list[tuple[str, bytes]] = []
        self._form, self._base, self._bare = FORMS[dialect], base, bare
        self._before: list[list[str]] = []
        routes = [
            web.get(self._at(self._form.models), self._listed),
            web.post(self._at(self._form.path), self._complete),
        ]
        if self._form is FORMS["llama-server-text"]:
            routes.append(web.post(f"{self._base}/apply-template", self._templated))
        self.port = self.serve(routes, port=port)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}{self._base}"

    def _at(self, path: str) -> str:
        return self._base + (path.removeprefix("/v1") if self._bare else path)

    async def _listed(self, request: web.Request) -> web.StreamResponse:
        if not self._knows(request):
            return _declined(401, "Incorrect API key provided")
        models = [{"id": name, "owned_by": self._form.owner} for name in self.models]
        return json_reply({"object": "list", "data": models})

    async def _templated(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.path, body))
        return json_reply(templated(body, f"{THINK}\n" if self.thinks else ""))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.path, body))
        if not self._knows(request):
            return _declined(401, "Incorrect API key provided")
        try:
            wish = self._wish(body)
        except Wrong as error:
            return _declined(error.status, error.reason)
        number = len(self.asked)
        self.asked.append(wish)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        said = self._form.reply(self._written(wish))
        return await self._reply(request, said, self.fault(number))

    def _knows(self, request: web.Request) -> bool:
        return self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}"

    def _wish(self, body: bytes) -> Wish:
        """Raises `Wrong` for a request that is declined."""
        plain = msgspec.json.decode(body)
        for name in self.declines & {*plain}:
            raise Wrong(self._form.unfit, f"Unsupported parameter: {name}")
        model = plain.get("model", self.models[0])
        if model not in self.models:
            raise Wrong(404, f"The model `{model}` does not exist or you have no access to it.")
        wish = self._form.wish(body)
        if self.only is not None and wish.temperature not in (None, self.only):
            raise Wrong(400, f"invalid temperature: only {self.only:g} is allowed for this model")
        if self.habit == "refuse" and wish.answer:
            raise Wrong(400, PREFILL)
        return wish

    def _written(self, wish: Wish) -> Written:
        prompt = [piece for one in wish.messages for piece in tokens(one.content)]
        prompt += tokens(wish.answer)
        held = max((common_prefix(prompt, other) for other in self._before), default=0)
        self._before.append(prompt)
        cached = held if self.cached else None
        if self.thinks and not wish.quiet:
            thoughts = "Let me think. " * wish.n
            return Written("", False, len(prompt), cached, wish.n, thoughts)
        begun = "" if self.habit == "restart" else wish.answer
        rest = tokens(self.script(wish.messages, begun))
        text = "".join(rest[: wish.n])
        if self.habit == "echo":
            text = wish.answer + text
        if self.habit == "strip":
            text = text.strip()
        return Written(text, len(rest) <= wish.n, len(prompt), cached, min(len(rest), wish.n))

    async def _reply(
        self, request: web.Request, said: dict[str, Any], fault: TextMisdeed | None
    ) -> web.StreamResponse:
        if isinstance(fault, Retold):
            return json_reply(fault.how(said))
        return await replied(request, said, fault)


def _declined(status: int, reason: str) -> web.Response:
    said = {"error": {"message": reason, "type": "invalid_request_error"}}
    return json_reply(said, status)
