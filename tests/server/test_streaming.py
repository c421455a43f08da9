"""Server-sent events: pings while nothing comes, errors as events, places given back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from edgewise.events import Event, Pending
from edgewise.server import replies
from edgewise.server.answering import Admission
from edgewise.server.completions import CompletionRequest, TextReply
from edgewise.server.replies import EventStream
from edgewise.testing.scripted_edge import ByteTokenizer

DRAFT = Pending(0, 97, "draft")


async def sent(events: AsyncGenerator[Event], admission: Admission) -> str:
    """What a client reads that stays to the end."""
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "headers": []}
    writer = TextReply(CompletionRequest(model="edgewise", prompt="x"), ByteTokenizer())
    held = AsyncExitStack()
    held.callback(admission.enter().leave)
    await EventStream(writer, events, held)(scope, receive, send)
    return b"".join(parts).decode()


def test_pings_come_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PING_SECONDS", 1)

    async def slow() -> AsyncGenerator[Event]:
        await asyncio.sleep(1.5)
        yield DRAFT

    admission = Admission(1, 0)
    told = asyncio.run(sent(slow(), admission))
    before, data, after = told.partition("draft")
    assert ": ping" in before
    assert data
    assert after.strip().endswith("data: [DONE]")
    assert (admission.waiting, admission.running) == (0, 0)
