"""A chat API over real HTTP that continues nothing, in OpenAI's form or in Anthropic's."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

from aiohttp import web

from tests.background import Served

Verdict = tuple[int, str | None] | str
"""How many sentences stand, and what replaces the next; or the reply as it is."""

_PARTS = re.compile(
    r"<conversation>\n(.*)\n</conversation>\n<answer>\n(.*)\n</answer>\n"
    r"<sentences>\n(.*)\n</sentences>",
    re.DOTALL,
)
_NUMBER = re.compile(r"(?m)^\[\d+\] ")


class Asked(NamedTuple):
    """What the reader is shown: the conversation, the answer so far, its next sentences."""

    conversation: str
    answer: str
    sentences: Sequence[str]


def all_stand(asked: Asked) -> Verdict:
    return len(asked.sentences), None


def mends(wrong: str, right: str) -> Callable[[Asked], Verdict]:
    """A reader that knows one error, and what is right in its place."""

    def judged(asked: Asked) -> Verdict:
        for stand, sentence in enumerate(asked.sentences):
            if wrong in sentence:
                return stand, sentence.strip().replace(wrong, right)
        return all_stand(asked)

    return judged


async def answers_whole() -> str:
    return "A whole answer."


class ChatReader(Served):
    """Serves on 127.0.0.1 from a thread of its own. `judge` is not asked about the probe.

    What asks for no verdict has the reply of `whole`. It does not know the fields in `declines`,
    `thinks` always, whatever is asked for, and writes at most `most` tokens.
    `fault` is told the number of each question and may name an HTTP status, or "hang" or "reset".
    `asked` are the questions, `bodies` all requests.
    """

    def __init__(
        self,
        judge: Callable[[Asked], Verdict] = all_stand,
        *,
        form: Literal["openai", "anthropic"] = "openai",
        fault: Callable[[int], int | Literal["hang", "reset"] | None] = lambda number: None,
        seconds: Callable[[int], float] = lambda number: 0.0,
    ) -> None:
        super().__init__()
        self.judge, self.form, self.fault, self.seconds = judge, form, fault, seconds
        self.probed: Verdict = (1, "Three and three are six.")
        self.whole: Callable[[], Awaitable[str]] = answers_whole
        self.declines: frozenset[str] = frozenset()
        self.why = "Unsupported parameter"
        self.key: str | None = None
        self.refuses = self.cuts = self.thinks = False
        self.most = 1 << 20
        self.misses = 0  # of the first probes
        self.thoughts = 0  # tokens of reasoning, which are in the total alone
        self.counts = True  # whether a reply has a report of usage
        self.each = 1.0  # tokens of a byte, in that report
        self.asked: list[Asked] = []
        self.bodies: list[dict[str, Any]] = []
        path = "/v1/chat/completions" if form == "openai" else "/v1/messages"
        port = self.serve([web.get("/v1/models", self._models), web.post(path, self._chat)])
        self.url = f"http://127.0.0.1:{port}"

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "reader", "owned_by": "somebody"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        given = headers.get("x-api-key") or headers.get("Authorization", "").removeprefix("Bearer ")
        if self.key is not None and given != self.key:
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        body = json.loads(await request.text())
        self.bodies.append(body)
        if unknown := sorted(self.declines & {*body}):
            said = {"error": {"message": f"{self.why}: '{unknown[0]}'."}}
            return web.json_response(said, status=400)
        if self.thinks and body.get("reasoning_effort") == "none":
            said = {"code": 400, "message": "Request contains an invalid argument."}
            return web.json_response([{"error": said}], status=400)
        limits = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
        if limits and body[limits[0]] > self.most:
            message = f"{limits[0]} is too large: this model supports at most {self.most} tokens."
            return web.json_response({"error": {"message": message}}, status=400)
        messages = body["messages"]
        if messages[-1]["role"] != "user":
            said = {"error": {"message": "The last message must be the user's."}}
            return web.json_response(said, status=400)
        content = messages[-1]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        verdict = self.probed
        if (parts := _PARTS.search(text)) is not None and "Three and three are" not in parts[3]:
            asked = Asked(parts[1], parts[2], _NUMBER.split(parts[3])[1:])
            self.asked.append(asked)
            number = len(self.asked)
            await asyncio.sleep(self.seconds(number))
            if (fault := self.fault(number)) == "hang":
                await asyncio.sleep(60)
            elif fault == "reset":
                assert request.transport is not None
                request.transport.abort()
            elif fault is not None:
                return web.json_response({"error": {"message": "later"}}, status=int(fault))
            verdict = self.judge(asked)
        elif parts is None:
            verdict = await self.whole()
        elif self.misses:
            self.misses, verdict = self.misses - 1, (2, None)
        if not isinstance(verdict, str):
            verdict = json.dumps({"stand": verdict[0], "replacement": verdict[1]})
        system = body.get("system") or messages[0]["content"]
        size = len(text.encode()) + (len(system.encode()) if system is not content else 0)
        return web.json_response(self._reply(verdict, round(self.each * size)))

    def _reply(self, text: str, prompt: int) -> dict[str, Any]:
        if self.form == "anthropic":
            usage = {"input_tokens": 9, "cache_read_input_tokens": prompt, "output_tokens": 12}
            reason = "refusal" if self.refuses else "max_tokens" if self.cuts else "end_turn"
            content = [{"type": "text", "text": text}]
            reply: dict[str, Any] = {"content": content, "stop_reason": reason}
            return {**reply, "usage": usage} if self.counts else reply
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.refuses:
            message = {"role": "assistant", "content": None, "refusal": "I will not."}
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": 12,
            "total_tokens": prompt + 12 + self.thoughts,
            "prompt_tokens_details": {"cached_tokens": prompt // 2},
        }
        reason = "length" if self.cuts else "stop"
        said: dict[str, Any] = {"choices": [{"finish_reason": reason, "message": message}]}
        return {**said, "usage": usage} if self.counts else said
