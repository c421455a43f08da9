"""
title: Edgewise
description: A small model on your device, a large one where it counts; the cloud's words are bold.
version: 0.1.0
license: Apache-2.0
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import aiohttp
from pydantic import BaseModel, Field

Emit = Callable[[dict[str, Any]], Awaitable[None]]


class Pipe:
    """Asks `edgewise serve`, marks the words that the cloud wrote, and says how many there were."""

    class Valves(BaseModel):
        """What the administrator sets."""

        url: str = Field("http://127.0.0.1:8300", description="Where edgewise serve listens.")
        key: str = Field("", description="Its EDGEWISE_API_KEY, if it has one.")
        model: str = Field("edgewise", description="edgewise, or edgewise@0.1 for another share.")
        bold: bool = Field(True, description="Show the cloud's words in bold.")

    def __init__(self) -> None:
        self.name = "Edgewise"
        self.valves = self.Valves()

    async def pipe(
        self, body: dict[str, Any], __event_emitter__: Emit | None = None
    ) -> AsyncGenerator[str]:
        """The answer's text as it is written."""
        asked = {
            "model": self.valves.model,
            "messages": body["messages"],
            "stream": True,
            "stream_options": {"include_usage": True},
            "edgewise": {"provenance": True},
        }
        headers = {"Authorization": f"Bearer {self.valves.key}"} if self.valves.key else {}
        url = f"{self.valves.url.rstrip('/')}/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=asked, headers=headers) as reply,
        ):
            if reply.status != 200:
                yield f"Edgewise refused: {await _reason(reply)}"
                return
            async for line in reply.content:
                event = _event(line)
                for choice in event.get("choices", []):
                    yield self._marked(choice.get("delta", {}).get("content") or "", event)
                if usage := event.get("usage"):
                    await _report(usage, __event_emitter__)
                if error := event.get("error"):
                    yield f"\n\nEdgewise stopped: {error.get('message')}"

    def _marked(self, text: str, event: dict[str, Any]) -> str:
        token = event.get("edgewise", {}).get("token", {})
        word = text.strip()
        if not self.valves.bold or token.get("source") != "cloud" or not word:
            return text
        before, _, after = text.partition(word)
        return f"{before}**{word}**{after}"


def _event(line: bytes) -> dict[str, Any]:
    """A server-sent event; an empty one for lines that hold none."""
    data = line.strip().removeprefix(b"data: ")
    return json.loads(data) if data.startswith(b"{") else {}


async def _reason(reply: aiohttp.ClientResponse) -> str:
    try:
        return str((await reply.json())["error"]["message"])
    except (aiohttp.ContentTypeError, ValueError, KeyError, TypeError):
        return f"HTTP {reply.status}"


async def _report(usage: dict[str, Any], emit: Emit | None) -> None:
    own = usage.get("edgewise", {})
    said = f"{own.get('edge_tokens', 0)} edge + {own.get('cloud_tokens', 0)} cloud tokens"
    if cost := own.get("cost"):
        said += f", {cost['paid']:.6f} {cost['currency']}".rstrip()
    if emit is not None:
        await emit({"type": "status", "data": {"description": said, "done": True}})
