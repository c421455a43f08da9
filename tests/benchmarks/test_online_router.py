"""A router that goes on learning: what it starts as, what it learns, what it spends."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.routers.online import UNTRAINED, Habits, Inputs, Online, Seen, Signals, Stream
from benchmarks.routers.tree import NEEDS, TOP, Models, Tree
from edgewise.routers.base import Router
from edgewise.routers.constant import Random
from edgewise.routers.uncertainty import Entropy
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from edgewise_lab.evaluation.systems import cloud_share
from edgewise_lab.evaluation.tasks.base import Question

ROOT = Path(__file__).parents[2]
QUESTION = Question("q", "zoo", "Which?", "b", "choice", choices=("a", "b"))


def online(router: Router) -> Online:
    inputs = Inputs(router, Signals())
    return Online(inputs, inputs.start())


def test_before_any_completion_it_is_the_trained_router() -> None:
    session = ScriptedEdge(noise()).session(NEEDS, top=TOP)
    session.open([1, 2, 3])
    for token in range(20):
        step = session.step()
        for router in (Entropy(), Random()):
            assert online(router).score(step, ()) == pytest.approx(router.score(step))
        session.extend([token])


def test_completions_say_which_signal_tells() -> None:
    """The trained score says nothing here, and entropy all; no more is kept after 4,000."""
    rng = np.random.default_rng(0)
    learnt = Inputs(Random(), Signals()).start()
    before = learnt.mean.shape, learnt.variance.shape
    draws = rng.normal(0, 2, (4000, 2 + len(UNTRAINED)))
    draws[:, 0] = 1.0
    for x in draws:
        worth = float(rng.random() < 1 / (1 + np.exp(3 - x[2])))
        learnt.learn(Seen(x, worth))
    assert learnt.mean[1:] == pytest.approx([0, 1, 0, 0, 0], abs=0.3)
    assert (learnt.mean.shape, learnt.variance.shape) == before
    assert learnt.variance.min() > 0


@pytest.mark.parametrize("explored", [0.0, 0.3])
def test_a_stream_spends_its_share_and_learns_of_it(explored: float) -> None:
    edge, cloud = (
        ScriptedEdge(replying(text, prompt=QUESTION.prompt)) for text in ("a " * 20, "a b " * 10)
    )
    with closing(Models(edge, cloud, 80)) as models:
        stream = Stream(online(Random()), Habits(0.1, explored), 0)
        before = stream.router.learnt.mean.copy()
        tree = Tree(QUESTION, models)
        found = [stream.answer(tree) for _ in range(20)]
    assert 0.08 < cloud_share(found) <= 0.1 + 2 / sum(o.output_tokens for o in found)
    assert np.abs(stream.router.learnt.mean - before).max() > 0.1


def told(work: Path) -> str:
    """What the command prints, for its smallest sizes."""
    command = [sys.executable, "-m", "benchmarks.online_router", "--work", str(work)]
    command += ["--sets", "test", "--seeds", "1", "--train", "12", "--calibration", "2"]
    done = subprocess.run(
        [*command, "--stream", "2"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_whole_command(tmp_path: Path) -> None:
    """Its smallest run, twice: the second finds everything done and says the same."""
    pytest.importorskip("torch")
    found = told(tmp_path)
    for row in ("entropy", "as trained, without it", "as trained, with it"):
        assert f"| {row} |" in found
    assert found.count("\n| signals |") == 2  # gaps and points on ordinary questions
    learnt = {path: path.read_bytes() for path in (tmp_path / "online").rglob("*.jsonl")}
    assert learnt
    assert told(tmp_path) == found
    assert {path: path.read_bytes() for path in learnt} == learnt
