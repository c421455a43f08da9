"""Consults in text and over connections of their own, at scripted servers."""

import asyncio
import json
from contextlib import closing

import pytest

from edgewise.completion import Completion
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.errors import CloudProtocolError
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import EOS, ByteTokenizer
from edgewise_lab.bench.plain_consults import PlainCloud, WrittenOut
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_text import Retold, ScriptedText

TEXT = "<|user|>hi<|end|><|assistant|>naïve"
"""In the form that the scripted API reads."""

IDS = list(TEXT.encode())
BYTES = ByteTokenizer()


def retold(text: str, reason: str) -> Retold:
    return Retold(lambda reply: {**reply, "choices": [{"text": text, "finish_reason": reason}]})


def written(server: ScriptedText, ids: list[int] = IDS, n: int = 1) -> Completion:
    async def asked() -> Completion:
        engine = WrittenOut(server.url, BYTES)
        try:
            return await engine.complete(ids, n, Sampling())
        finally:
            await engine.close()

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("ids", "text"), [(IDS, TEXT), (IDS[:-3], TEXT[:-3] + "\N{REPLACEMENT CHARACTER}")]
)
def test_the_whole_text_is_sent(ids: list[int], text: str) -> None:
    with closing(ScriptedText("completions")) as server:
        written(server, ids)
        path, body = server.requests[-1]
    assert path == "/v1/completions"
    sent = json.loads(body)
    assert (sent["prompt"], sent["max_tokens"], sent["temperature"]) == (text, 1, 0)


@pytest.mark.parametrize(
    ("text", "reason", "ids", "stopped"),
    [
        # The engine's one token is several of the device's, of which one is kept.
        ("blue", "length", b"b", False),
        ("", "stop", b"", True),
        # No whole character.
        ("", "length", b"\xef", False),
    ],
)
def test_one_token_of_what_comes_back_is_kept(
    text: str, reason: str, ids: bytes, stopped: bool
) -> None:
    with closing(ScriptedText("completions", fault=lambda _: retold(text, reason))) as server:
        completion = written(server)
    assert (bytes(completion.ids), completion.stopped) == (ids, stopped)
    completion.check(asked=1, prompt=len(IDS), may_be_empty=not ids)


def test_an_answer_that_ended_ends_with_the_devices_own_token() -> None:
    with closing(ScriptedText("completions", fault=lambda _: retold("", "stop"))) as server:
        cloud = PlainCloud(WrittenOut(server.url, BYTES), BYTES, kept=True)
        with closing(cloud):
            asked = cloud.open(Prompt(tuple(IDS))).ask(IDS, 1, Sampling(), 30)
            assert asked.result().ids == (EOS,)


def test_ids_that_the_device_does_not_have_are_refused() -> None:
    with closing(ScriptedEngine(script=lambda ids: 100_000)) as engine:
        cloud = PlainCloud(LlamaServerEngine(engine.url), BYTES, kept=False)
        with closing(cloud), pytest.raises(CloudProtocolError, match="ids outside"):
            cloud.open(Prompt(tuple(IDS))).ask(IDS, 1, Sampling(), 30).result()


@pytest.mark.parametrize(("kept", "connections"), [(True, 1), (False, 4)])
def test_a_connection_is_kept_or_made_for_each(kept: bool, connections: int) -> None:
    with closing(ScriptedEngine()) as engine:
        link = Link("127.0.0.1", int(engine.url.rpartition(":")[2]))
        with closing(link), closing(PlainCloud(LlamaServerEngine(link.url), BYTES, kept=kept)) as c:
            session = c.open(Prompt(tuple(IDS)))
            for _ in range(4):
                session.ask(IDS, 1, Sampling(), 30).result()
            assert link.connections == connections
