"""How each API that takes text is asked to continue an answer.

Chat APIs differ in a few fields. If a server takes the prompt as text, the answer follows the
messages rendered with the model's chat template.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from edgewise.completion import metered
from edgewise.engines.base import NOBODY, Client
from edgewise.engines.http import Declined
from edgewise.engines.replies import Count, LlamaTimings, llama_sampling, sampling_fields
from edgewise.engines.text import (
    PromptText,
    ReplyMessage,
    TextContinuation,
    TextEngine,
    TextRequest,
    turns,
)
from edgewise.errors import CloudRejected, UsageError
from edgewise.prompts import Message
from edgewise.prompts.rendering import render
from edgewise.prompts.special import ControlTokens
from edgewise.sampling import Sampling

_NO_TEMPLATE_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}
_NO_THOUGHTS = {"thinking": {"type": "disabled"}}
_NO_EFFORT = {"reasoning_effort": "none"}
_FILTERS = frozenset({"top_k", "min_p"})
_OFF = {"top_k": 0, "min_p": 0, "top_p": 1}


class ChatText(TextEngine):
    """Asks by `/chat/completions`: the answer is the last message.

    A field that switches thinking off, the temperature of greedy answers and the seed are left
    out from then on where an API declines a request because of them and answers without.

    Another API is a subclass. `begun` are fields of the request, and `last` of its last message,
    that make it continue; `quiet` switches thinking off. `filters` are the names it has beside
    `top_p`, sent `always` or where they filter; `seed` is its name for one.
    """

    dialect = "chat completions"
    begun: ClassVar[Mapping[str, object]] = {}
    last: ClassVar[Mapping[str, object]] = {}
    quiet: ClassVar[Mapping[str, object]] = _NO_EFFORT
    filters: ClassVar[frozenset[str]] = frozenset()
    always: ClassVar[bool] = False
    seed: ClassVar[str | None] = "seed"
    _unwanted: frozenset[str] = frozenset()

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        _, answer, n, sampling = request
        messages = turns(self.url, request.messages)
        body: dict[str, Any] = {"model": await self.model_name(), "messages": messages}
        if answer:
            messages.append({"role": "assistant", "content": answer, **self.last})
            body |= self.begun
        drawn = self._drawn(sampling, len(answer))
        body |= {"max_tokens": n, "stream": False, **drawn, **self.quiet}
        optional = {*self.quiet, *([self.seed] if self.seed else [])}
        if sampling.greedy:
            optional.add("temperature")
        return self.completion(await self._reply(body, optional, client), request)

    async def _reply(self, body: Mapping[str, Any], optional: set[str], client: Client) -> bytes:
        """The reply to `body`, without those of its `optional` fields that the API declines."""
        unwanted = self._unwanted & optional
        while True:
            fewer = {name: value for name, value in body.items() if name not in unwanted}
            ask = self.post if self.chat_base else self.at_base
            try:
                reply = await ask(f"{self.chat_base}/chat/completions", fewer, client)
            except Declined as error:
                named = {name for name in optional & {*fewer} if names(error.said, name)}
                if error.elsewhere or not named:
                    raise
                unwanted |= named
            else:
                self._unwanted |= unwanted
                return reply

    def _drawn(self, sampling: Sampling, position: int) -> dict[str, Any]:
        """Sampling fields in its own names; raises `CloudRejected` for settings that it lacks."""
        fields = sampling_fields(sampling, position)
        if sampling.greedy:
            return fields
        for name in _FILTERS - self.filters:
            if fields.pop(name):
                raise CloudRejected(
                    f"{self.dialect} has no {name.replace('_', '-')}, so it cannot sample as asked",
                    hint="leave it off",
                    setting=name,
                )
        seed = fields.pop("seed")
        if self.seed:
            fields[self.seed] = seed
        if self.always:
            return {**fields, "top_k": sampling.top_k or -1}
        return {name: value for name, value in fields.items() if value != _OFF.get(name)}


class VllmText(ChatText):
    """vLLM."""

    dialect, owner = "vLLM", "vllm"
    begun: ClassVar[Mapping[str, object]] = {
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    quiet = _NO_TEMPLATE_THOUGHTS
    filters = _FILTERS
    always = True


class SglangText(ChatText):
    """SGLang."""

    dialect, owner = "SGLang", "sglang"
    begun: ClassVar[Mapping[str, object]] = {"continue_final_message": True}
    quiet = _NO_TEMPLATE_THOUGHTS
    filters = _FILTERS
    always = True


class DeepSeekText(ChatText):
    """DeepSeek's API."""

    dialect = "DeepSeek"
    last: ClassVar[Mapping[str, object]] = {"prefix": True}
    quiet = _NO_THOUGHTS
    seed = None
    chat_base = "/beta"


class MistralText(ChatText):
    """Mistral's API."""

    dialect = "Mistral"
    last: ClassVar[Mapping[str, object]] = {"prefix": True}
    seed = "random_seed"


class QwenText(ChatText):
    """Qwen's API (DashScope)."""

    dialect = "Qwen"
    last: ClassVar[Mapping[str, object]] = {"partial": True}
    quiet: ClassVar[Mapping[str, object]] = {"enable_thinking": False}
    filters = frozenset({"top_k"})


class MoonshotText(ChatText):
    """Moonshot's API."""

    dialect = "Moonshot"
    last: ClassVar[Mapping[str, object]] = {"partial": True}
    quiet = _NO_THOUGHTS
    seed = None


class LmStudioText(ChatText):
    """LM Studio."""

    dialect = "LM Studio"
    filters = frozenset({"top_k"})


class EdgewiseText(ChatText):
    """Another `edgewise serve`."""

    dialect, owner = "Edgewise", "edgewise"
    filters = _FILTERS


class _OllamaChat(msgspec.Struct):
    message: ReplyMessage
    done: bool
    done_reason: str | None = None
    prompt_eval_count: Count | None = None
    eval_count: Count | None = None


class OllamaText(TextEngine):
    """Asks by Ollama's `/api/chat`, which knows all ways to draw.

    A prompt longer than its context is declined, where Ollama by itself would cut it.
    """

    dialect = "Ollama"

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        _, answer, n, sampling = request
        messages = turns(self.url, request.messages)
        if answer:
            messages.append({"role": "assistant", "content": answer})
        body = {
            "model": await self.model_name(),
            "messages": messages,
            "stream": False,
            "think": False,
            "truncate": False,
            "options": {
                "num_predict": n,
                "repeat_penalty": 1.0,
                **sampling_fields(sampling, len(answer)),
            },
        }
        reply = self.read(await self.post("/api/chat", body, client), _OllamaChat)
        if not reply.done:
            raise self.streamed()
        counts = reply.prompt_eval_count, None, reply.eval_count
        return self.checked(request, reply.message, reply.done_reason, counts)


class _Prompt(msgspec.Struct):
    prompt: str


class _LlamaCompletion(msgspec.Struct):
    content: str
    stop_type: str
    timings: LlamaTimings = msgspec.field(default_factory=LlamaTimings)


# Forms of models' control tokens. A prompt of text has them parsed, whoever wrote them.
_SIGN = re.compile(r"<\|[^<>]{1,40}\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")


class LlamaServerText(PromptText):
    """Asks by llama-server's `/apply-template` and `/completion`.

    No message may hold what looks like a control token.
    """

    dialect, owner = "llama-server", "llamacpp"

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        for text in (*(message.content for message in request.messages), request.answer):
            if sign := _SIGN.search(text):
                raise _not_as_text(sign[0], self.url)
        body = {
            "prompt": await self.prompt(request, client),
            "n_predict": request.n,
            "cache_prompt": True,
            "response_fields": ["content", "stop_type", "timings"],
            **llama_sampling(request.sampling, len(request.answer)),
        }
        reply = self.read(await self.post("/completion", body, client), _LlamaCompletion)
        meter = reply.timings
        counts = metered(meter.cache_n, meter.prompt_n), meter.cache_n, meter.predicted_n
        return self.checked(request, reply.content, reply.stop_type, counts)

    async def rendered(self, messages: Sequence[Message], client: Client, *, thinks: bool) -> str:
        body = {
            "messages": turns(self.url, messages),
            "chat_template_kwargs": {"enable_thinking": thinks},
        }
        reply = await self.post("/apply-template", body, client, tells=False)
        return self.read(reply, _Prompt).prompt


class CompletionsText(PromptText):
    """Asks by `/completions`: the template is rendered here.

    No message may hold a control token of the model's tokenizer.
    """

    dialect = "completions"
    renders = True

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        self._check_plain([*(message.content for message in request.messages), request.answer])
        prompt = await self.prompt(request, client)
        body = {
            "model": await self.model_name(),
            "prompt": prompt,
            "max_tokens": request.n,
            "stream": False,
            **sampling_fields(request.sampling, len(request.answer)),
        }
        reply = await self.at_base("/completions", body, client)
        return self.completion(reply, request)

    async def rendered(self, messages: Sequence[Message], client: Client, *, thinks: bool) -> str:
        tokenizer = self.tokenizer
        assert tokenizer is not None
        if tokenizer.chat_template is None:
            return "\n\n".join(message.content for message in messages)
        try:
            text = await asyncio.to_thread(render, tokenizer, messages)
        except UsageError as error:
            raise CloudRejected(f"The cloud model cannot read the prompt: {error}") from error
        # It is put there once more where the server reads the text.
        adds = tokenizer.encode_prompt("", special=False)
        return text.removeprefix(tokenizer.special_text("bos")) if adds else text

    @cached_property
    def _control(self) -> ControlTokens:
        assert self.tokenizer is not None
        return ControlTokens(self.tokenizer.special)

    def _check_plain(self, contents: Sequence[str]) -> None:
        """Raises `CloudRejected` for what the server would take for its template's own."""
        for content in contents:
            pieces = self._control.split(content)
            if len(pieces) > 1:
                raise _not_as_text(pieces[1], self.url)


def _not_as_text(sign: str, url: str) -> CloudRejected:
    return CloudRejected(f"A message holds {sign!r}, which {url!r} would not read as text.")


def names(said: str, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", said) is not None
