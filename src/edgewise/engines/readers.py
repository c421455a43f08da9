"""Chat APIs that answer whole and read, but continue nothing: OpenAI's form, and Anthropic's.

Most hosted models are such. Fields that an API declines by name are left out from then on, or sent
in its other form.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from edgewise.completion import metered
from edgewise.engines.base import NOBODY, Client
from edgewise.engines.http import Declined
from edgewise.engines.replies import Count, sampling_fields
from edgewise.engines.text import TextContinuation, TextEngine, TextRequest, turns
from edgewise.engines.text_dialects import names
from edgewise.errors import CloudProtocolError, CloudRejected
from edgewise.prompts import Message
from edgewise.sampling import Sampling

Fields = Mapping[str, object]


class ReaderRequest(msgspec.Struct, frozen=True):
    """A reply to `messages` of at most `n` tokens; with a JSON `schema`, one that fits it."""

    messages: Sequence[Message]
    n: int
    sampling: Sampling = Sampling()
    schema: Fields | None = None


class Reader(TextEngine):
    """A chat API that is asked for whole replies."""

    _declined: frozenset[str] = frozenset()

    @abstractmethod
    async def chat(self, request: ReaderRequest, client: Client = NOBODY) -> TextContinuation:
        """The whole reply; raises a `CloudError`."""

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        """A whole answer: one that was begun is not continued."""
        if request.answer:
            raise CloudRejected(f"{self.url!r} continues no answer that was begun.")
        asked = ReaderRequest(request.messages, request.n, request.sampling)
        return await self.chat(asked, client)

    async def accepted(
        self, path: str, body: Fields, forms: Sequence[Sequence[Fields]], client: Client
    ) -> bytes:
        """The reply to `body` and one of each of the `forms`: the first that was not declined yet.

        After the last of them nothing is sent in their place. Raises a `CloudError`.
        """
        while True:
            chosen = [next((one for one in form if not self._gone(one)), {}) for form in forms]
            fields = {name: value for one in chosen for name, value in one.items()}
            try:
                return await self.at_base(path, {**body, **fields}, client)
            except Declined as error:
                # By its name, or by a newer one that it wants instead.
                at_fault = [one for one in chosen if any(names(error.said, name) for name in one)]
                if error.elsewhere or not at_fault:
                    raise
                self._declined |= {_key(one) for one in at_fault}

    def _gone(self, form: Fields) -> bool:
        return _key(form) in self._declined


def _key(form: Fields) -> str:
    return msgspec.json.encode(form, order="deterministic").decode()


class OpenAiReader(Reader):
    """`/chat/completions`: OpenAI, Gemini, OpenRouter, llama-server, vLLM, Ollama and most more."""

    dialect = "OpenAI chat"

    async def chat(self, request: ReaderRequest, client: Client = NOBODY) -> TextContinuation:
        body: dict[str, Any] = {
            "model": await self.model_name(),
            "messages": turns(self.url, request.messages),
            "stream": False,
        }
        sampling, n = request.sampling, request.n
        drawn = {} if sampling.greedy else sampling_fields(sampling, 0)
        # Newer models of OpenAI's take only the longer name, and decline any temperature.
        forms: list[Sequence[Fields]] = [
            ({"max_tokens": n}, {"max_completion_tokens": n}),
            ({"temperature": 0},) if sampling.greedy else ({"temperature": drawn["temperature"]},),
            ({"reasoning_effort": "none"}, {"reasoning_effort": "low"}),
        ]
        if request.schema is not None:
            named = {"name": "verdict", "strict": True, "schema": request.schema}
            by_schema = {"type": "json_schema", "json_schema": named}
            forms.append(
                ({"response_format": by_schema}, {"response_format": {"type": "json_object"}})
            )
        if not sampling.greedy and sampling.top_p < 1:
            forms.append(({"top_p": sampling.top_p},))
        reply = await self.accepted("/chat/completions", body, forms, client)
        return self.completion(reply, TextRequest(request.messages, "", n, sampling))


class _Block(msgspec.Struct):
    type: str
    text: str | None = None


class _AnthropicUsage(msgspec.Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _AnthropicMessage(msgspec.Struct):
    content: list[_Block]
    stop_reason: str | None = None
    usage: _AnthropicUsage | None = None


class AnthropicReader(Reader):
    """`/v1/messages`: Claude, and APIs in its form."""

    dialect = "Anthropic messages"

    def __init__(self, url: str, *, key: str | None = None, **options: Any) -> None:
        super().__init__(url, **options)
        self._headers = {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    async def chat(self, request: ReaderRequest, client: Client = NOBODY) -> TextContinuation:
        sampling, n = request.sampling, request.n
        first, *others = request.messages
        system = first.content if first.role == "system" else ""
        messages = turns(self.url, others if system else request.messages)
        # The provider caches what is before a mark; the last message grows with the answer.
        mark = {"cache_control": {"type": "ephemeral"}}
        messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"], **mark}]
        body = {
            "model": await self.model_name(),
            "max_tokens": n,
            "messages": messages,
            **({"system": system} if system else {}),
        }
        forms: list[Sequence[Fields]] = [({"temperature": sampling.temperature},)]
        if request.schema is not None:
            named = {"type": "json_schema", "schema": request.schema}
            forms.append(({"output_config": {"format": named}}, {"output_format": named}))
        reply = self.read(await self.accepted("/messages", body, forms, client), _AnthropicMessage)
        text = "".join(one.text or "" for one in reply.content if one.type == "text")
        if reply.stop_reason == "refusal":
            raise CloudRejected(f"The model at {self.url!r} refused to answer.")
        if not text:
            raise CloudProtocolError(f"{self.url!r} sent a reply without any text.")
        used = reply.usage or _AnthropicUsage()
        cached = used.cache_read_input_tokens
        new = metered(used.input_tokens, used.cache_creation_input_tokens or 0)
        counts = metered(new, cached or 0), cached, used.output_tokens
        asked = TextRequest(request.messages, "", n, sampling)
        return self.checked(asked, text, reply.stop_reason, counts)
