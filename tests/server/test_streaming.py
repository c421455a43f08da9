"""Server-sent events: pings while nothing comes, errors as events, places given back."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from edgewise.errors import CloudUnavailable
from edgewise.server import streaming
from edgewise.server.answering import Admission
from edgewise.server.streaming import EventStream


async def sent(chunks: AsyncGenerator[dict[str, Any]], admission: Admission) -> str:
    """What a client reads that stays to the end."""
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "headers": []}
    await EventStream(chunks, admission.enter())(scope, receive, send)
    return b"".join(parts).decode()


def test_pings_come_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PING_SECONDS", 1)

    async def slow() -> AsyncGenerator[dict[str, Any]]:
        await asyncio.sleep(1.5)
        yield {"a": 1}

    admission = Admission(1, 0)
    told = asyncio.run(sent(slow(), admission))
    before, data, after = told.partition('data: {"a":1}')
    assert ": ping" in before
    assert data
    assert after.strip() == "data: [DONE]"
    assert (admission.waiting, admission.running) == (0, 0)


def test_a_fault_in_the_middle_is_an_event() -> None:
    async def failing(error: Exception) -> AsyncGenerator[dict[str, Any]]:
        yield {"a": 1}
        raise error

    for error, code in (
        (CloudUnavailable("gone."), "cloud_unavailable"),
        (ZeroDivisionError("secret"), "internal_error"),
    ):
        told = asyncio.run(sent(failing(error), Admission(1, 0)))
        assert 'data: {"a":1}' in told
        assert code in told
        assert "secret" not in told
        assert told.strip().endswith("data: [DONE]")
