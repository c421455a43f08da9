"""The record of what leaves is what crosses the socket: over every dialect, whatever goes wrong."""

import base64
import errno
import os
import random
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from edgewise.addresses import bundled
from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.cloud.record import PayloadsFile, SentRecord
from edgewise.edge.base import PROBES
from edgewise.edge.vocabulary import bytes_of
from edgewise.events import Consult, Event, Finished, SentCounts
from edgewise.loop.decoder import Decoder
from edgewise.loop.one_cloud import FLIGHTS
from edgewise.loop.policy import Policy
from edgewise.pair import open_pair
from edgewise.prompts import Message, prompt_of
from edgewise.routers.untrained import Random
from edgewise.settings import Settings
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying
from tests.cloud.recording import Recorder, ids_of, recording
from tests.doubles.completing import completing
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import Misdeed, ScriptedEngine
from tests.doubles.scripted_text import ScriptedText, numbers
from tests.gateway.processes import until
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server
from tests.pocket_models import OTHER
from tests.server_process import free_port

QUESTION = Message("user", "Where does the café get its coffee?")
FIXED = {tuple(ord(one) ^ 1 for one in text) for text in PROBES if text.isascii()}
"""What a proof may ask an engine of the other vocabulary."""

TEXT_DIALECTS = (
    *("chat", "mistral", "deepseek", "qwen", "moonshot", "lm-studio", "ollama"),
    *("vllm-text", "sglang-text", "llama-server-text"),
)


@dataclass
class Wired:
    """A cloud behind a proxy that keeps what crosses, and the record beside it.

    What a vocabulary check sends is the same whoever asks what: `fixed`.
    """

    cloud: CloudModel
    recorder: Recorder
    record: SentRecord
    engine: ScriptedEngine
    fixed: frozenset[bytes]

    def answered(
        self, *messages: Message, seed: int = 0, deadline: float = 60.0, ahead: int = 4
    ) -> list[Event]:
        """The events of an answer that consults and prefetches much, and goes other ways."""
        decoder = Decoder(
            ScriptedEdge(noise(seed)),
            router=Random(seed),
            policy=Policy(threshold=0.6, speculate=ahead, span=2, deadline=deadline),
            cloud=self.cloud,
            record=self.record,
        )
        prompt = prompt_of(decoder.edge.tokenizer, messages or [QUESTION])
        with decoder.stream(prompt, max_tokens=40) as events:
            return list(events)

    def messages(self) -> list[bytes]:
        """What the proxy saw, without vocabulary checks."""
        return [
            message
            for message in self.recorder.messages
            if message not in self.fixed and tuple(ids_of(message)) not in FIXED
        ]

    def crossed(self) -> tuple[int, int]:
        """By the proxy: bytes and ids."""
        messages = self.messages()
        return sum(map(len, messages)), sum(len(ids_of(one)) for one in messages)

    def told(self) -> tuple[int, int]:
        sums = [one.sums for one in self.record.answers()]
        return sum(one.bytes for one in sums), sum(one.tokens for one in sums)

    def require_equal(self) -> None:
        """The record's sums are the proxy's, once stragglers have arrived."""
        until(lambda: self.told() == self.crossed())


@pytest.fixture(params=[*DIALECTS, "gateway"])
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    name = request.param
    dialect: Dialect = name if name in DIALECTS else "llama-server"
    with ExitStack() as stack:
        engine = stack.enter_context(closing(ScriptedEngine(dialect=dialect)))
        behind = name == "gateway"
        target = stack.enter_context(gateway([engine.url])).url if behind else engine.url
        recorder = stack.enter_context(recording(target))
        cloud = stack.enter_context(closing(open_engine(recorder.url, engine=name)))
        cloud.check_vocabulary(ByteTokenizer())
        fixed = frozenset(one for one in recorder.messages if one[:1] == b"{")
        recorder.forget()
        yield Wired(cloud, recorder, SentRecord(), engine, fixed)


def test_the_record_is_what_crossed_the_socket(wired: Wired) -> None:
    conversation = [QUESTION]
    for turn in range(3):
        before = wired.told()
        events = wired.answered(*conversation, seed=turn)
        wired.require_equal()
        (end,) = (event for event in events if isinstance(event, Finished))
        assert end.usage.sent.host == wired.recorder.url.removeprefix("http://")
        assert end.usage.sent.bytes > 0
        # But for consults that were given up as they left, and words that they were.
        late = FLIGHTS * (end.usage.prompt_tokens + end.usage.edge_tokens + end.usage.cloud_tokens)
        size, tokens = (now - then for now, then in zip(wired.told(), before, strict=True))
        assert 0 <= tokens - end.usage.sent.tokens <= late
        assert 0 <= size - end.usage.sent.bytes < 20 * late
        for told in (event for event in events if isinstance(event, Consult)):
            assert told.host == end.usage.sent.host
        conversation += [Message("assistant", f"As I said, {turn}."), Message("user", "And?")]
    assert len({one.conversation for one in wired.record.answers()}) == 1
    assert len({one.answer for one in wired.record.answers()}) == 3
    # What begins alike is one conversation until it is forgotten.
    for forgets in (False, False, True):
        if forgets:
            wired.record.forget()
        wired.answered(seed=1, ahead=0)
    first, second, third = (one.conversation for one in wired.record.answers()[3:])
    assert first == second != third


@pytest.mark.parametrize("how", ["hang", "reset", "error", "garbage"])
def test_whatever_goes_wrong_is_in_the_record(wired: Wired, how: Misdeed) -> None:
    wrong = random.Random(7)
    wired.engine.fault = lambda number: how if wrong.random() < 0.4 else None
    for seed in range(3):
        wired.answered(seed=seed, deadline=0.1)
    wired.require_equal()


def payloads_in(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_payloads_are_every_message_as_it_left(wired: Wired, tmp_path: Path) -> None:
    path = tmp_path / "sent.jsonl"
    wired.record = SentRecord(payloads=PayloadsFile(path))
    wired.answered()
    wired.cloud.close()
    crossed, lines = wired.messages(), payloads_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = [
        line["body"].encode() if "body" in line else base64.b64decode(line["base64"])
        for line in lines
    ]
    # A gateway's session is closed with the cloud, after all answers.
    assert not Counter(written) - Counter(crossed)
    assert len(crossed) - len(written) == isinstance(wired.cloud, GatewayCloud)
    assert QUESTION.content in lines[0]["text"]
    assert sum(line["bytes"] for line in lines) == wired.told()[0]


def test_a_disk_that_fills_lets_nothing_more_out(
    wired: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left, write = tmp_path / "sent.jsonl", 3, os.write
    wired.record = SentRecord(payloads=PayloadsFile(path))

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if data[:1] == b"{" and (left := left - 1) < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    wired.answered()
    monkeypatch.undo()
    wired.cloud.close()
    lines = payloads_in(path)
    assert len(lines) == 3
    assert sum(one["tokens"] for one in lines) == wired.crossed()[1]


@pytest.mark.parametrize("how", [None, "hang", "reset"])
@pytest.mark.parametrize("dialect", TEXT_DIALECTS)
def test_the_record_of_text_is_what_crossed(dialect: str, how: Any, tmp_path: Path) -> None:
    wrong, question = random.Random(7), Message("user", "Count from one, café by café.")
    edge, prompt = ByteTokenizer(), prompt_of(ByteTokenizer(), [question])
    record = SentRecord(payloads=PayloadsFile(tmp_path / "sent.jsonl"))
    with closing(ScriptedText(dialect)) as server, recording(server.url) as recorder:
        with closing(connect(recorder.url, edge, engine=dialect)) as cloud:
            recorder.forget()
            server.fault = lambda number: how if wrong.random() < 0.4 else None
            decoder = Decoder(
                ScriptedEdge(completing(numbers([], ""), prompt=bytes(prompt.ids).decode())),
                router=Random(0),
                policy=Policy(threshold=0.5, speculate=4, deadline=0.1 if how else 60.0),
                cloud=cloud,
                record=record,
            )
            decoder.generate(prompt, max_tokens=60)
            until(lambda: sum(one.sums.bytes for one in record.answers()) == recorder.size)
        payloads = payloads_in(tmp_path / "sent.jsonl")
        bodies = sorted(one["body"].encode() for one in payloads)
        assert bodies == sorted(recorder.messages)
        assert {(one["tokens"], one["text"]) for one in payloads} == {(0, "")}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_of_a_verification_is_told_what_left(dialect: Dialect, tmp_path: Path) -> None:
    """From the prompt's first id on, without a draft that stayed; one in a grammar has left."""
    path, edge = tmp_path / "sent.jsonl", ScriptedEdge(replying(" At Anna's.", prompt="Where?"))
    with (
        closing(ScriptedEngine(dialect=dialect)) as engine,
        closing(open_engine(engine.url, engine=dialect)) as cloud,
    ):
        cloud.check_vocabulary(edge.tokenizer)
        policy, record = Policy(verify="on", deadline=60.0), SentRecord(PayloadsFile(path))
        decoder = Decoder(edge, router=Random(), policy=policy, cloud=cloud, record=record)
        told = decoder.generate(list(b"Where?"), max_tokens=24).usage.sent.tokens
    lines, left = payloads_in(path), list[list[int]]()
    for body in (msgspec.json.decode(line["body"]) for line in lines):
        grammar = [int(token) for token in re.findall(r"<\[(\d+)\]>", body.get("grammar", ""))]
        drafts = grammar or [token for token, _ in body.get("logit_bias", [])]
        left.append([*np.hstack(body.get("prompt") or body["input_ids"]).tolist(), *drafts])
    texts = [bytes_of(edge.tokenizer, ids).decode() for ids in left]
    assert [one["text"] for one in lines] == texts
    assert [one["tokens"] for one in lines] == [len(ids) for ids in left]
    assert told == sum(map(len, left))


def test_where_nothing_is_reached_nothing_is_recorded() -> None:
    with closing(LlamaServer(f"http://127.0.0.1:{free_port()}")) as cloud:
        decoder = Decoder(ScriptedEdge(noise()), router=Random(), policy=Policy(), cloud=cloud)
        answer = decoder.generate(list(b"sky: "), max_tokens=20)
    assert answer.usage.failed_calls > 0
    assert answer.usage.sent == SentCounts()
    assert decoder.record.answers() == []


@pytest.mark.deep
def test_across_an_adapter_the_record_is_in_the_clouds_ids(tmp_path: Path) -> None:
    """What travels, and what it says, by the vocabulary that it travels in."""
    file = tmp_path / "sent.jsonl"
    chosen = Settings(
        edge=str(OTHER), cloud_tokenizer="bundled", router="random", threshold=0.5, threads=1
    )
    with llama_server(bundled("cloud")) as engine, recording(engine) as recorder:
        with open_pair(replace(chosen, cloud=recorder.url), sent_file=file) as pair:
            assert isinstance(pair.cloud, Adapter)
            fixed = frozenset(recorder.messages)
            recorder.forget()
            sent = pair.ask("Tell me about copper.", max_tokens=24).usage.sent
            own = pair.cloud.own
        crossed = [one for one in recorder.messages if one not in fixed]
    assert sent.consults > 0
    assert sum(map(len, crossed)) == sent.bytes
    assert sum(len(ids_of(one)) for one in crossed) == sent.tokens
    payloads = payloads_in(file)
    told = {one["text"] for one in payloads if one["tokens"]}
    assert told == {bytes_of(own, ids_of(one)).decode() for one in crossed if ids_of(one)}
    assert "Tell me about copper." in min(told, key=len)
