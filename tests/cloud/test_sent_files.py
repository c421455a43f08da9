"""The file of payloads: for its owner, and true."""

import base64
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.cloud.record import AnswerSent, PayloadsFile, SentRecord
from edgewise.costs.daily import DailyTotal
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.routers.constant import Random
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise
from tests.cloud.recording import Recorder, recording
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway

SECRET = "the café at noon"
ASKED = [Message("user", SECRET)]


def decoder(cloud: LlamaServer | GatewayCloud, record: SentRecord) -> Decoder:
    policy = Policy(threshold=0.5, deadline=30.0)
    return Decoder(
        ScriptedEdge(noise()), router=Random(1), policy=policy, cloud=cloud, record=record
    )


@contextmanager
def reached(
    engine: ScriptedEngine, through: str
) -> Iterator[tuple[LlamaServer | GatewayCloud, Recorder]]:
    """A cloud behind a recording proxy, proven; it is the engine or a gateway before it."""
    with ExitStack() as stack:
        stack.callback(engine.close)
        behind = through == "gateway"
        target = stack.enter_context(gateway([engine.url])).url if behind else engine.url
        recorder = stack.enter_context(recording(target))
        cloud = (GatewayCloud if behind else LlamaServer)(recorder.url)
        stack.callback(cloud.close)
        cloud.check(ByteTokenizer())
        recorder.forget()
        yield cloud, recorder


def _link(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("of somebody")
    path.symlink_to(other)


def _given(path: Path) -> None:
    path.touch(0o600)
    os.chown(path, 12345, -1)


_ROOT = hasattr(os, "getuid") and os.getuid() == 0
NOT_ONES_OWN = [
    *(os.mkfifo, _link, Path.mkdir),
    pytest.param(_given, marks=pytest.mark.skipif(not _ROOT, reason="only root gives files away")),
]


@pytest.mark.parametrize("make", NOT_ONES_OWN)
def test_only_a_file_of_ones_own_is_written_to(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A pipe would be waited for, a link leads to another's file, and its owner reads another's."""
    path = tmp_path / "sent.jsonl"
    make(path)
    with pytest.raises(UsageError):
        PayloadsFile(path)
    with pytest.raises(UsageError):
        DailyTotal(path).require_usable()
    if (other := tmp_path / "other").exists():
        assert other.read_text() == "of somebody"


@pytest.mark.parametrize("kind", [PayloadsFile, DailyTotal])
def test_a_file_that_others_could_read_is_for_its_owner(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "kept"
    path.touch()
    path.chmod(0o666)
    file = kind(path)
    if kind is DailyTotal:
        file.add("2026-01-01", "", Decimal(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_answers_at_once_mix_nothing(tmp_path: Path) -> None:
    """Two processes and four answers write to one file; every line is one message, whole."""
    path, message = tmp_path / "payloads.jsonl", b'{"text": "' + b"x" * 200_000 + b'"}'
    records = [SentRecord(payloads=PayloadsFile(path)) for _ in range(2)]

    def answered(number: int) -> AnswerSent:
        answer = records[number % 2].answer(Prompt((number,)), "http://h", ByteTokenizer())
        for _ in range(20):
            answer.consult([number]).add(1, message)
        return answer.sums

    with ThreadPoolExecutor(4) as threads:
        sums = list(threads.map(answered, range(4)))
    lines = [json.loads(one) for one in path.read_bytes().splitlines()]
    assert {(one["body"], one["bytes"]) for one in lines} == {(message.decode(), len(message))}
    for one in sums:
        own = [line for line in lines if line["answer"] == one.answer]
        assert [line["number"] for line in own] == list(range(20))
        assert (one.consults, one.tokens, one.bytes) == (20, 20, 20 * len(message))


def test_a_message_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """A disk that is full, or a process that was killed, leaves half a line."""
    path = tmp_path / "payloads.jsonl"
    path.write_bytes(b'{"at": 1.0, "conv')
    record = SentRecord(payloads=PayloadsFile(path))
    record.answer(Prompt((1,)), "http://h", ByteTokenizer()).consult([1]).add(1, b"{}")
    _, last = path.read_bytes().splitlines()
    assert json.loads(last)["body"] == "{}"


@pytest.mark.parametrize("through", ["engine", "gateway"])
def test_a_disk_that_fills_in_mid_answer_lets_nothing_more_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: str
) -> None:
    engine, file, left = ScriptedEngine(), PayloadsFile(tmp_path / "payloads.jsonl"), 3
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if data[:1] == b"{" and (left := left - 1) < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    with reached(engine, through) as (cloud, recorder):
        monkeypatch.setattr(os, "write", full)
        record = SentRecord(payloads=file)
        decoder(cloud, record).generate(prompt_of(ByteTokenizer(), ASKED), max_tokens=20)
        monkeypatch.undo()
        cloud.close()
        wrote = [json.loads(one) for one in (tmp_path / "payloads.jsonl").read_text().splitlines()]
        assert len(wrote) == 3
        assert sum(one["tokens"] for one in wrote) == recorder.ids


@pytest.mark.parametrize("through", ["engine", "gateway"])
def test_payloads_are_every_message_as_it_left(tmp_path: Path, through: str) -> None:
    engine, path = ScriptedEngine(), tmp_path / "payloads.jsonl"
    with reached(engine, through) as (cloud, recorder):
        record = SentRecord(payloads=PayloadsFile(path))
        decoder(cloud, record).generate(prompt_of(ByteTokenizer(), ASKED), max_tokens=30)
        cloud.close()
        # A look at the engine sends fixed strings.
        looked = b"add_special" if through == "engine" else b"no look at all"
        crossed = [message for message in recorder.messages if looked not in message]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    written = [
        line["body"].encode() if "body" in line else base64.b64decode(line["base64"])
        for line in lines
    ]
    # A gateway's session is closed with the cloud, after all answers.
    assert written == crossed[: len(written)]
    assert len(crossed) - len(written) == (through == "gateway")
    assert SECRET in lines[0]["text"]
    assert sum(line["bytes"] for line in lines) == sum(m.bytes for m in record.answers())


def test_payloads_that_can_never_be_written_are_refused_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for what is sent cannot be written"):
        Pair(ScriptedEdge(noise()), cloud="none", sent_file=tmp_path / "no" / "file.jsonl")
