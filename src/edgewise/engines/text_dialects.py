"""How each API that takes text is told to go on with an answer that was begun.

Chat APIs differ in a few fields, which are a table. Where a server lets the prompt be written as
text, the answer stands behind what the model's chat template makes of the messages.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.engines.base import NOBODY, Client, sampling_fields
from edgewise.engines.text import GoneOn, TextEngine
from edgewise.engines.text_endpoint import Declined, PromptText, TextEndpoint, turns
from edgewise.engines.text_replies import (
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


class ChatDialect(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat API is sent beside the messages; `name` is what sentences call it.

    `begun` are fields of the request, and `last` of its last message, that make it go on;
    `unbegun` those of a request for an answer from its beginning. `quiet` switches thinking off.
    `filters` are the names it has beside `top_p`, sent `always` or where they filter; `seed` is
    its name for one. `bases` are where its path may begin, `serves` as in `TextEndpoint`.
    """

    name: str
    begun: Mapping[str, object] = {}
    last: Mapping[str, object] = {}
    quiet: Mapping[str, object] = {}
    filters: frozenset[str] = frozenset()
    always: bool = False
    seed: str | None = "seed"
    bases: tuple[str, ...] | None = None
    serves: str | None = None


_NO_TEMPLATE_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}
_NO_THOUGHTS = {"thinking": {"type": "disabled"}}
_NO_EFFORT = {"reasoning_effort": "none"}
_FILTERS = frozenset({"top_k", "min_p"})

VLLM = ChatDialect(
    name="vLLM",
    begun={"continue_final_message": True, "add_generation_prompt": False},
    quiet=_NO_TEMPLATE_THOUGHTS,
    filters=_FILTERS,
    always=True,
    serves="vllm",
)
SGLANG = ChatDialect(
    name="SGLang",
    begun={"continue_final_message": True},
    quiet=_NO_TEMPLATE_THOUGHTS,
    filters=_FILTERS,
    always=True,
    serves="sglang",
)
DEEPSEEK = ChatDialect(
    name="DeepSeek", last={"prefix": True}, quiet=_NO_THOUGHTS, seed=None, bases=("/beta",)
)
MISTRAL = ChatDialect(name="Mistral", last={"prefix": True}, quiet=_NO_EFFORT, seed="random_seed")
QWEN = ChatDialect(
    name="Qwen",
    last={"partial": True},
    quiet={"enable_thinking": False},
    filters=frozenset({"top_k"}),
)
MOONSHOT = ChatDialect(name="Moonshot", last={"partial": True}, quiet=_NO_THOUGHTS, seed=None)
LM_STUDIO = ChatDialect(name="LM Studio", quiet=_NO_EFFORT, filters=frozenset({"top_k"}))
EDGEWISE = ChatDialect(name="Edgewise", quiet=_NO_EFFORT, filters=_FILTERS, serves="edgewise")
TRAILING = ChatDialect(name="chat completions", quiet=_NO_EFFORT)


class ChatText(TextEndpoint):
    """Implements `TextEngine` by `/chat/completions`: the answer is the last message.

    A field that switches thinking off, the temperature of greedy answers and the seed are left
    out from then on where an API declines a request because of them and answers without.
    """

    def __init__(
        self, url: str, *, chat: ChatDialect, key: str | None = None, model: str | None = None
    ) -> None:
        """Raises `UsageError` as `TextEndpoint`."""
        super().__init__(url, key=key, model=model)
        self._chat = chat
        self.dialect, self.serves = chat.name, chat.serves
        for base in chat.bases or ():
            self.url = self.url.removesuffix(base)
        self._unwanted: frozenset[str] = frozenset()

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> GoneOn:
        spoken = turns(self.url, messages)
        body: dict[str, Any] = {"model": await self.model_name(), "messages": spoken}
        if answer:
            spoken.append({"role": "assistant", "content": answer, **self._chat.last})
            body |= self._chat.begun
        drawn = self._drawn(sampling, len(answer))
        body |= {"max_tokens": n, "stream": False, **drawn, **self._chat.quiet}
        optional = {*self._chat.quiet, *([self._chat.seed] if self._chat.seed else [])}
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
            lambda base: self.post(f"{base}/chat/completions", body, client), self._chat.bases
        )

    def _drawn(self, sampling: Sampling, position: int) -> dict[str, Any]:
        """How it draws, in its own words; raises `CloudRejected` for what it has none for."""
        if sampling.greedy:
            return {"temperature": 0}
        chat = self._chat
        filters = {"top_k": sampling.top_k, "min_p": sampling.min_p}
        for name, value in filters.items():
            if value and name not in chat.filters:
                raise CloudRejected(
                    f"{self.dialect} has no {name.replace('_', '-')}, so its words cannot be drawn "
                    "as asked",
                    hint="leave it off",
                    setting=name,
                )
        if chat.always:
            filters["top_k"] = sampling.top_k or -1
        sent = {name: filters[name] for name in chat.filters if chat.always or filters[name]}
        seed = {chat.seed: sampling.seed_at(position)} if chat.seed else {}
        top_p = {"top_p": sampling.top_p} if chat.always or sampling.top_p < 1 else {}
        return {"temperature": sampling.temperature, **top_p, **sent, **seed}


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
    ) -> GoneOn:
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

    dialect, serves = "llama-server", "llama-server"

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client = NOBODY,
    ) -> GoneOn:
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
    ) -> GoneOn:
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


class TextFactory(Protocol):
    """What opens an API of one dialect; raises `UsageError` for what is no address."""

    def __call__(
        self, url: str, *, key: str | None = None, model: str | None = None
    ) -> TextEngine: ...


TEXT_DIALECTS: Mapping[str, TextFactory] = {
    "llama-server-text": LlamaServerText,
    "ollama": OllamaText,
    "deepseek": partial(ChatText, chat=DEEPSEEK),
    "vllm-text": partial(ChatText, chat=VLLM),
    "sglang-text": partial(ChatText, chat=SGLANG),
    "mistral": partial(ChatText, chat=MISTRAL),
    "qwen": partial(ChatText, chat=QWEN),
    "moonshot": partial(ChatText, chat=MOONSHOT),
    "lm-studio": partial(ChatText, chat=LM_STUDIO),
    "chat": partial(ChatText, chat=TRAILING),
    "edgewise": partial(ChatText, chat=EDGEWISE),
    "completions": CompletionsText,
}
"""By the names that users give them, in the order in which an unknown API may be asked.

Paths of their own come first, which others decline; then fields that others may not know; then the
plain trailing message, that some take for an answer given. The last needs a tokenizer too.
"""
