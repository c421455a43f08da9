"""How each API that takes text is told to go on with an answer that was begun.

Chat APIs differ in a few fields. Where a server lets the prompt be written as
text, the answer stands behind what the model's chat template makes of the messages.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.engines.base import NOBODY, Client, sampling_fields
from edgewise.engines.text import Declined, PromptText, TextEndpoint, turns
from edgewise.engines.text_replies import (
    ApiReply,
    AskedText,
    of_completion,
    of_llama_server,
    of_ollama,
    read,
)
from edgewise.errors import CloudRejected, UsageError
from edgewise.prompts import Message, render
from edgewise.prompts.special import ControlTokens
from edgewise.sampling import Sampling

_NO_TEMPLATE_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}
_NO_THOUGHTS = {"thinking": {"type": "disabled"}}
_NO_EFFORT = {"reasoning_effort": "none"}
_FILTERS = frozenset({"top_k", "min_p"})


class ChatText(TextEndpoint):
    """Implements `TextEngine` by `/chat/completions`: the answer is the last message.

    A field that switches thinking off, the temperature of greedy answers and the seed are left
    out from then on where an API declines a request because of them and answers without.

    Another API is a subclass. `begun` are fields of the request, and `last` of its last message,
    that make it continue; `quiet` switches thinking off. `filters` are the names it has beside
    `top_p`, sent `always` or where they filter; `seed` is its name for one. `chat_bases` are where
    the path may begin, where that is not as in `TextEndpoint`.
    """

    dialect = "chat completions"
    begun: ClassVar[Mapping[str, object]] = {}
    last: ClassVar[Mapping[str, object]] = {}
    quiet: ClassVar[Mapping[str, object]] = _NO_EFFORT
    filters: ClassVar[frozenset[str]] = frozenset()
    always: ClassVar[bool] = False
    seed: ClassVar[str | None] = "seed"
    chat_bases: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        """Raises `UsageError` as `TextEndpoint`."""
        super().__init__(url, key=key, model=model)
        for base in self.chat_bases or ():
            self.url = self.url.removesuffix(base)
        self._unwanted: frozenset[str] = frozenset()

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> ApiReply:
        spoken = turns(self.url, messages)
        body: dict[str, Any] = {"model": await self.model_name(), "messages": spoken}
        if answer:
            spoken.append({"role": "assistant", "content": answer, **self.last})
            body |= self.begun
        drawn = self._drawn(sampling, len(answer))
        body |= {"max_tokens": n, "stream": False, **drawn, **self.quiet}
        optional = {*self.quiet, *([self.seed] if self.seed else [])}
        if sampling.greedy:
            optional.add("temperature")
        replied = await self._replied(body, optional, client)
        return of_completion(replied, AskedText(self.url, self.dialect, answer, n))

    async def _replied(self, body: Mapping[str, Any], optional: set[str], client: Client) -> bytes:
        """The reply to `body`, without those of its `optional` fields that the API declines."""
        unwanted = self._unwanted & optional
        while True:
            fewer = {name: value for name, value in body.items() if name not in unwanted}
            try:
                replied = await self._posted(fewer, client)
            except Declined as error:
                named = {name for name in optional & {*fewer} if _names(error.said, name)}
                if error.elsewhere or not named:
                    raise
                unwanted |= named
            else:
                self._unwanted |= unwanted
                return replied

    async def _posted(self, body: Mapping[str, Any], client: Client) -> bytes:
        return await self.found(
            lambda base: self.post(f"{base}/chat/completions", body, client), self.chat_bases
        )

    def _drawn(self, sampling: Sampling, position: int) -> dict[str, Any]:
        """How it draws, in its own words; raises `CloudRejected` for what it has none for."""
        if sampling.greedy:
            return {"temperature": 0}
        filters = {"top_k": sampling.top_k, "min_p": sampling.min_p}
        for name, value in filters.items():
            if value and name not in self.filters:
                raise CloudRejected(
                    f"{self.dialect} has no {name.replace('_', '-')}, so its words cannot be drawn "
                    "as asked",
                    hint="leave it off",
                    setting=name,
                )
        if self.always:
            filters["top_k"] = sampling.top_k or -1
        sent = {name: filters[name] for name in self.filters if self.always or filters[name]}
        seed = {self.seed: sampling.seed_at(position)} if self.seed else {}
        top_p = {"top_p": sampling.top_p} if self.always or sampling.top_p < 1 else {}
        return {"temperature": sampling.temperature, **top_p, **sent, **seed}


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
    chat_bases = ("/beta",)


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


class OllamaText(TextEndpoint):
    """Implements `TextEngine` by Ollama's `/api/chat`, which knows all ways to draw.

    A prompt longer than its context is declined, where Ollama by itself would cut it.
    """

    dialect = "Ollama"

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> ApiReply:
        spoken = turns(self.url, messages)
        if answer:
            spoken.append({"role": "assistant", "content": answer})
        body = {
            "model": await self.model_name(),
            "messages": spoken,
            "stream": False,
            "think": False,
            "truncate": False,
            "shift": False,
            "options": {
                "num_predict": n,
                "repeat_penalty": 1.0,
                **sampling_fields(sampling, len(answer)),
            },
        }
        replied = await self.post("/api/chat", body, client)
        return of_ollama(replied, AskedText(self.url, self.dialect, answer, n))


class _Prompt(msgspec.Struct):
    prompt: str


class LlamaServerText(PromptText):
    """Implements `TextEngine` by llama-server's `/apply-template` and `/completion`."""

    dialect, owner = "llama-server", "llamacpp"

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> ApiReply:
        body = {
            "prompt": await self.prompt(messages, answer, client),
            "n_predict": n,
            "cache_prompt": True,
            "response_fields": ["content", "stop_type", "timings"],
            **sampling_fields(sampling, len(answer)),
        }
        if not sampling.greedy:
            body["samplers"] = ["temperature", "top_k", "top_p", "min_p"]
        replied = await self.post("/completion", body, client)
        return of_llama_server(replied, AskedText(self.url, self.dialect, answer, n))

    async def rendered(self, messages: Sequence[Message], client: Client, *, thinks: bool) -> str:
        body = {
            "messages": turns(self.url, messages),
            "chat_template_kwargs": {"enable_thinking": thinks},
        }
        replied = await self.post("/apply-template", body, client)
        return read(replied, _Prompt, self.url, self.dialect).prompt


class CompletionsText(PromptText):
    """Implements `TextEngine` by `/completions`: the template is rendered here.

    That needs the model's own `tokenizer`; no message may hold a control token of it.
    """

    dialect = "completions"

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Raises `UsageError` as `TextEndpoint`."""
        super().__init__(url, key=key, model=model)
        self._tokenizer = tokenizer
        self._control = ControlTokens(tokenizer.special) if tokenizer else None

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> ApiReply:
        self._check_plain([*(message.content for message in messages), answer])
        prompt = await self.prompt(messages, answer, client)
        body = {
            "model": await self.model_name(),
            "prompt": prompt,
            "max_tokens": n,
            "stream": False,
            **sampling_fields(sampling, len(answer)),
        }
        replied = await self.found(lambda base: self.post(f"{base}/completions", body, client))
        return of_completion(replied, AskedText(self.url, self.dialect, answer, n))

    async def rendered(self, messages: Sequence[Message], client: Client, *, thinks: bool) -> str:
        tokenizer = self._tokenizer
        assert tokenizer is not None
        if tokenizer.chat_template is None:
            return "\n\n".join(message.content for message in messages)
        try:
            text = await asyncio.to_thread(render, tokenizer, messages)
        except UsageError as error:
            raise CloudRejected(f"For the cloud model: {error}") from error
        # It is put there once more where the server reads the text.
        adds = tokenizer.encode_prompt("", special=False)
        return text.removeprefix(tokenizer.special_text("bos")) if adds else text

    def _check_plain(self, contents: Sequence[str]) -> None:
        """Raises `CloudRejected` for what the server would take for its template's own."""
        if self._control is None:
            raise CloudRejected(
                f"{self.url!r} is asked by text alone, for which the model's chat template is "
                "needed",
                hint="name the cloud model's tokenizer",
                setting="cloud_tokenizer",
            )
        for content in contents:
            pieces = self._control.split(content)
            if len(pieces) > 1:
                raise CloudRejected(
                    f"A message holds {pieces[1]!r}, which {self.url!r} would not read as text."
                )


def _names(said: str, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", said) is not None
