"""Anthropic's `/v1/messages`, which Claude and similar APIs have."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from edgewise.completion import metered
from edgewise.errors import CloudRejected
from edgewise.servers.base import (
    GREEDY,
    Count,
    Fault,
    Fields,
    Request,
    TextContinuation,
    TextServer,
    WantedText,
    decoded,
)
from edgewise.servers.chat import temperature_of
from edgewise.servers.replies import was_ended


class _Block(msgspec.Struct):
    type: str
    text: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Message(msgspec.Struct):
    content: list[_Block]
    stop_reason: str | None = None
    usage: _Usage | None = None


class AnthropicServer(TextServer):
    """Anthropic's messages API for a cloud model: it cannot continue an answer, and has no seed."""

    name, reads, filters = "Anthropic messages", True, frozenset[str]()

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def complete(self, asked: WantedText) -> Request:
        first, *others = asked.turns
        system = {"system": first["content"]} if first["role"] == "system" else {}
        if system and not others:
            raise CloudRejected(f"{self.name} take no system message alone", hint="ask something")
        *before, last = others if system else asked.turns
        # The provider caches what is before a mark; the last message grows with the answer.
        part = {"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}
        messages = [*before, {**last, "content": [part]}]
        body: dict[str, Any] = {"model": asked.model, "max_tokens": asked.n, "messages": messages}
        if asked.drawn != GREEDY:
            body |= temperature_of(asked.drawn)
        return Request("/v1/messages", {**body, **system})

    def forms(self, asked: WantedText) -> Sequence[Sequence[Fields]]:
        forms: list[Sequence[Fields]] = [(GREEDY, {})] if asked.drawn == GREEDY else []
        if asked.schema is not None:
            named = {"type": "json_schema", "schema": asked.schema}
            forms.append(({"output_config": {"format": named}}, {"output_format": named}, {}))
        return forms

    def continued(self, data: bytes) -> TextContinuation:
        reply = decoded(data, _Message)
        text = "".join(one.text or "" for one in reply.content if one.type == "text")
        if reply.stop_reason == "refusal":
            raise Fault("a refusal to answer", CloudRejected)
        if not text:
            raise Fault("a reply without any text")
        used = reply.usage or _Usage()
        cached = used.cache_read_input_tokens
        new = metered(used.input_tokens, used.cache_creation_input_tokens or 0)
        ended, prompt = was_ended(reply.stop_reason), metered(new, cached or 0)
        return TextContinuation(text, ended, prompt, cached, used.output_tokens)
