"""Answers and features: collected once, whole or not at all, as the router sees them later."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgewise.cloud.local import LocalCloud
from edgewise.errors import UsageError
from edgewise.routers.signals import needs_of, signals_of, top_of
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.rollouts import Continuation, Done, Prefix, Rollouts
from edgewise_lab.training.collect import (
    COLUMNS,
    KEPT,
    Sample,
    collect_answers,
    collect_features,
    read_by_cloud,
)
from edgewise_lab.training.spending import SpendingMeter

PROMPT = "How many?"
ANSWERED = "Oh it is 7."


def task(count: int = 120, reference: str = "") -> Task:
    questions = [
        Question(f"{i}", "sums", PROMPT, "7", "number", reference=reference) for i in range(count)
    ]
    return Task("sums", tuple(questions), max_tokens=40)


def model(text: str) -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT))


class Counted(Rollouts):
    """Stops after some rollouts, like a person who is tired of waiting."""

    def __init__(self, edge: ScriptedEdge, stop_after: int | None = None) -> None:
        super().__init__(LocalCloud(edge), 1)
        self.count, self._stop_after = 0, stop_after

    def run(self, prefixes: Sequence[Prefix], done: Done = lambda *_: None) -> list[Continuation]:
        def counted(index: int, continuation: Continuation) -> None:
            done(index, continuation)
            self.count += 1
            if self.count == self._stop_after:
                raise KeyboardInterrupt

        return super().run(prefixes, counted)


def answers(folder: Path, count: int = 120) -> list[Sample]:
    cloud = Counted(model(ANSWERED))
    return collect_answers(task(count), model("").tokenizer, cloud, folder)


def test_no_answer_is_asked_for_twice(tmp_path: Path) -> None:
    tokenizer = model("").tokenizer
    with pytest.raises(KeyboardInterrupt):
        collect_answers(task(), tokenizer, Counted(model(ANSWERED), 30), tmp_path)
    kept = (tmp_path / "answers.jsonl").read_bytes()
    (tmp_path / "answers.jsonl").write_bytes(kept + b'{"question": "3')  # killed in mid-line
    again = Counted(model(ANSWERED))
    found = collect_answers(task(), tokenizer, again, tmp_path)
    assert again.count == 120 - 30
    assert [answer.question for answer in found] == [str(i) for i in range(120)]
    assert all(bytes(answer.ids[:-1]).decode() == ANSWERED for answer in found)
    assert all(answer.right for answer in found)


def test_a_folder_may_hold_more_than_is_asked_for(tmp_path: Path) -> None:
    """A router that is trained without some questions reads the others from the same folder."""
    edge, every = ScriptedEdge(noise()), answers(tmp_path, 60)
    whole = collect_features(every, "answer", edge, tmp_path)
    some = [answer for at, answer in enumerate(every) if at % 7 == 3]
    found = collect_features(some, "answer", edge, tmp_path)
    assert found.questions == tuple(answer.question for answer in some)
    assert [found.questions[at] for at in found.sample.tolist()] == [
        whole.questions[at] for at in whole.sample.tolist() if at % 7 == 3
    ]
    kept = whole.sample % 7 == 3
    for column in ("proposed", "written"):
        assert getattr(found, column).tolist() == getattr(whole, column)[kept].tolist()
    for name in COLUMNS:
        assert np.array_equal(found.inputs[name], whole.inputs[name][kept])


def test_rows_are_what_the_router_sees_at_run_time(tmp_path: Path) -> None:
    edge, every = ScriptedEdge(noise()), answers(tmp_path, 3)
    # And a text longer than one prefill: read in parts, it comes out as in one.
    every.append(Sample("long", tuple(PROMPT.encode()), tuple(b"ab " * 200), True))
    found = collect_features(every, "answer", edge, tmp_path)
    session = edge.session(needs_of(COLUMNS), top=top_of(COLUMNS, KEPT))
    rows = zip(*(found.inputs[name] for name in COLUMNS), strict=True)
    at = 0
    for answer in every:
        session.open(answer.prompt)
        for token in answer.ids:
            step = session.step()
            for one, row in zip(signals_of(COLUMNS), next(rows), strict=True):
                assert one.read is not None
                np.testing.assert_allclose(one.read(step, KEPT), row, rtol=1e-5)
            assert (found.proposed[at], found.written[at]) == (step.proposed, token)
            at += 1
            session.extend([token])
    assert at == len(found.written)
    session.close()
    assert edge.sessions == 0


def test_features_go_on_where_they_stopped(tmp_path: Path) -> None:
    every = answers(tmp_path)
    whole = collect_features(every, "answer", model("So it is 3."), tmp_path)
    shards = sorted(tmp_path.glob("answer-*.safetensors"))
    assert len(shards) == 3
    shards[-1].rename(tmp_path / "answer-00002.partial")  # killed while writing it
    before = [path.stat().st_mtime_ns for path in shards[:2]]
    again = collect_features(every, "answer", model("So it is 3."), tmp_path)
    assert again.questions == whole.questions
    assert all(np.array_equal(again.inputs[name], whole.inputs[name]) for name in COLUMNS)
    assert np.array_equal(again.sample, whole.sample)
    assert [path.stat().st_mtime_ns for path in shards[:2]] == before


def test_features_that_are_no_numbers(tmp_path: Path) -> None:
    def broken(ids: Sequence[int]) -> np.ndarray:
        return np.full(258, np.nan, np.float32)

    with pytest.raises(UsageError, match="not numbers"):
        collect_features(answers(tmp_path, 2), "answer", ScriptedEdge(broken), tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("damage", [b"", b"junk", b"\x08" + b"\0" * 7 + b"{}      "])
def test_a_shard_that_is_damaged_is_named(tmp_path: Path, damage: bytes) -> None:
    few = answers(tmp_path, 2)
    collect_features(few, "answer", model("So it is 3."), tmp_path)
    (tmp_path / "answer-00000.safetensors").write_bytes(damage)
    with pytest.raises(UsageError, match=r"answer-00000\.safetensors'"):
        collect_features(few, "answer", model("So it is 3."), tmp_path)


READ = [Sample(f"{i}", (*b"How?",), (*f"It is {i}.".encode(),), True) for i in range(3)]

by_cloud = partial(read_by_cloud, meter=SpendingMeter())


def test_a_model_here_and_an_engine_elsewhere_read_alike_and_it_is_kept(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    here = by_cloud(READ, LocalCloud(ScriptedEdge(noise())), folders[0])
    assert by_cloud(READ[:2], ScriptedCloud(noise()), folders[1]) == here[:2]
    cloud, told = ScriptedCloud(noise()), list[None]()
    assert by_cloud(READ, cloud, folders[1], lambda: told.append(None)) == here
    assert len(cloud.asks) == len(READ[2].ids)
    assert len(told) == 3
    assert all(len(one.cloud) == len(one.ids) for one in here)
