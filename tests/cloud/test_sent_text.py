"""The record of what leaves as text is what crosses the socket, whatever dialect carries it."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from edgewise.cloud.bridge.text import TextCloud
from edgewise.cloud.connect import connect
from edgewise.cloud.record import Payload, PayloadsFile, SentRecord, counts_of
from edgewise.events import Finished, SentCounts
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, prompt_of
from edgewise.routers.constant import Random
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, completing
from tests.cloud.recording import Recorder, recording
from tests.doubles.scripted_text import ScriptedText, TextMisdeed, numbers

DIALECTS = (
    *("chat", "mistral", "deepseek", "qwen", "moonshot", "lm-studio", "ollama"),
    *("vllm-text", "sglang-text", "llama-server-text"),
)
COUNTED = numbers([], "")
QUESTION = Message("user", "Count from one, café by café.")


@dataclass
class Wired:
    """A text cloud behind a proxy that keeps what crosses, and the record beside it."""

    cloud: TextCloud
    recorder: Recorder
    record: SentRecord
    server: ScriptedText

    def answered(self, messages: list[Message], *, seed: int, deadline: float = 5.0) -> SentCounts:
        """What an answer says that it sent."""
        tokenizer = ByteTokenizer()
        prompt = prompt_of(tokenizer, messages)
        decoder = Decoder(
            ScriptedEdge(completing(COUNTED, prompt=bytes(prompt.ids).decode())),
            router=Random(seed),
            policy=Policy(threshold=0.5, speculate=4, deadline=deadline),
            cloud=self.cloud,
            record=self.record,
        )
        with decoder.stream(prompt, max_tokens=60) as events:
            (end,) = (event for event in events if isinstance(event, Finished))
        return end.usage.sent

    def crossed(self) -> SentCounts:
        """By the proxy."""
        return SentCounts(bytes=sum(map(len, self.recorder.messages)))

    def require_equal(self) -> None:
        """The record's sums are the proxy's, once stragglers have arrived."""
        end = time.monotonic() + 60
        while (told := self.told()) != (crossed := self.crossed()):
            assert time.monotonic() < end, (told, crossed)
            time.sleep(0.02)

    def told(self) -> SentCounts:
        found = counts_of(self.record.answers())
        return SentCounts(bytes=found.bytes, tokens=found.tokens)


@pytest.fixture(params=DIALECTS)
def wired(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wired]:
    with ExitStack() as stack:
        server = stack.enter_context(closing(ScriptedText(request.param)))
        recorder = stack.enter_context(recording(server.url))
        cloud = connect(recorder.url, ByteTokenizer(), engine=request.param)
        stack.enter_context(closing(cloud))
        assert isinstance(cloud, TextCloud)
        recorder.forget()
        record = SentRecord(payloads=PayloadsFile(tmp_path / "sent.jsonl"))
        yield Wired(cloud, recorder, record, server)


def test_the_record_of_text_is_what_crossed_the_socket(wired: Wired, tmp_path: Path) -> None:
    conversation = [QUESTION]
    sent = 0
    for turn in range(2):
        sent += wired.answered(conversation, seed=turn).bytes
        conversation += [Message("assistant", f"As I said, {turn}."), Message("user", "And?")]
    wired.require_equal()
    told = wired.told()
    assert told.tokens == 0
    # But for a guess's consult that was given up, which may leave after the answer.
    assert 0 <= told.bytes - sent < 1000
    assert len({one.conversation for one in wired.record.answers()}) == 1
    lines = (tmp_path / "sent.jsonl").read_bytes().splitlines()
    payloads = [msgspec.json.decode(line, type=Payload) for line in lines]
    bodies = sorted(str(one.body).encode() for one in payloads)
    assert bodies == sorted(wired.recorder.messages)
    assert {(one.tokens, one.text) for one in payloads} == {(0, "")}


@pytest.mark.parametrize("how", ["hang", "reset"])
def test_whatever_goes_wrong_with_text_is_in_the_record(wired: Wired, how: TextMisdeed) -> None:
    wrong = random.Random(7)
    wired.server.fault = lambda number: how if wrong.random() < 0.4 else None
    wired.answered([QUESTION], seed=0, deadline=0.3)
    wired.require_equal()
