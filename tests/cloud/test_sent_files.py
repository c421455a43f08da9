"""The file of payloads: for its owner, and true."""

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from edgewise.cloud.record import PayloadsFile, SentAnswer, SentRecord
from edgewise.costs.daily import DailyTotal
from edgewise.errors import UsageError
from edgewise.pair import Pair
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise


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
def test_only_ones_own_file_is_written_to(tmp_path: Path, make: Callable[[Path], None]) -> None:
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
    with pytest.raises(UsageError, match="for what is sent cannot be written"):
        Pair(ScriptedEdge(noise()), cloud="none", sent_file=tmp_path / "no" / "file.jsonl")


def test_answers_at_once_mix_nothing(tmp_path: Path) -> None:
    """Two processes and four answers write to one file; every line is one message, whole."""
    path, message = tmp_path / "payloads.jsonl", b'{"text": "' + b"x" * 200_000 + b'"}'
    records = [SentRecord(payloads=PayloadsFile(path)) for _ in range(2)]

    def answered(number: int) -> SentAnswer:
        answer = records[number % 2].answer(Prompt((number,)), "http://h", ByteTokenizer())
        for _ in range(20):
            answer.consult().add([number], message)
        return answer

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(answered, range(4)))
    lines = [json.loads(one) for one in path.read_bytes().splitlines()]
    assert {(one["body"], one["bytes"]) for one in lines} == {(message.decode(), len(message))}
    for answer in answers:
        own, one = [line for line in lines if line["answer"] == answer.answer], answer.sums
        assert [line["number"] for line in own] == list(range(20))
        assert (one.consults, one.tokens, one.bytes) == (20, 20, 20 * len(message))


def test_a_message_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """A disk that is full, or a process that was killed, leaves half a line."""
    path = tmp_path / "payloads.jsonl"
    path.write_bytes(b'{"at": 1.0, "conv')
    record = SentRecord(payloads=PayloadsFile(path))
    record.answer(Prompt((1,)), "http://h", ByteTokenizer()).consult().add([1], b"{}")
    _, last = path.read_bytes().splitlines()
    assert json.loads(last)["body"] == "{}"
