"""Many clients: every answer is whole and its own, or a clean 429; those who leave are noticed."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from edgewise.addresses import bundled
from edgewise.events import Event, Pending
from edgewise.server import replies
from edgewise.server.answering import Admission
from edgewise.server.completions import CompletionRequest, TextReply
from edgewise.server.replies import EventStream
from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.llama_server_process import llama_server
from tests.server.serving import serving

WORDS = ("copper", "iron", "gold", "silver", "tin", "lead", "zinc", "nickel")


def ask(word: str, *, tokens: int = 40) -> dict[str, object]:
    messages = [{"role": "user", "content": f"Tell me about {word}."}]
    return {"model": "edgewise:edge", "messages": messages, "max_tokens": tokens}


async def post(session: aiohttp.ClientSession, url: str, body: object) -> tuple[int, str, str]:
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        told = await response.json()
        if response.status == 429:
            return 429, response.headers["Retry-After"], told["error"]["code"]
        return response.status, told["choices"][0]["message"]["content"], ""


def test_everyone_gets_their_own_answer_or_is_sent_away() -> None:
    async def all_at_once(url: str) -> list[tuple[int, str, str]]:
        async with aiohttp.ClientSession() as session:
            alone = {word: (await post(session, url, ask(word)))[1] for word in WORDS}
            words = [WORDS[number % len(WORDS)] for number in range(24)]
            found = await asyncio.gather(*(post(session, url, ask(word)) for word in words))
            for word, (status, text, _) in zip(words, found, strict=True):
                assert status == 429 or text == alone[word]
            # Afterwards everything is free again.
            assert (await post(session, url, ask("copper")))[0] == 200
            return found

    with serving("--slots", "2", "--queue", "3", "--threads", "1") as url:
        found = asyncio.run(all_at_once(url))
    statuses = [status for status, _, _ in found]
    assert statuses.count(200) >= 5
    assert statuses.count(429) >= 1
    for status, patience, code in found:
        if status == 429:
            assert int(patience) >= 1
            assert code == "queue_full"


async def leave_early(session: aiohttp.ClientSession, url: str, *, stream: bool) -> None:
    body = ask("copper") | {"model": "edgewise@1", "stream": stream}

    async def read() -> None:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            await response.read()

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(read(), 0.1)


@pytest.mark.deep
def test_a_client_that_leaves_frees_its_place() -> None:
    async def until_free(url: str, *, stream: bool) -> None:
        async with aiohttp.ClientSession() as session:
            await leave_early(session, url, stream=stream)
            begun = time.monotonic()
            while (await post(session, url, ask("iron", tokens=4)))[0] != 200:
                assert time.monotonic() - begun < 60

    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=2.0))
        # A consult in two seconds, and a dozen of them in an answer.
        flags = ("--slots", "1", "--queue", "0", "--threads", "1", "--span", "2")
        with serving(*flags, "--cloud", link.url, "--router", "constant:1") as url:
            for stream in (True, False, True, False):
                asyncio.run(until_free(url, stream=stream))
        link.close()


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
