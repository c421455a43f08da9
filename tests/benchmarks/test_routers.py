"""The comparison of routers: its answers are the decoder's, its gates see what they may see."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from benchmarks.routers import gates
from benchmarks.routers.plan import first_of_each
from benchmarks.routers.thresholds import Search, search
from benchmarks.routers.trainings import opened
from benchmarks.routers.tree import Models, Tree
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.routers.base import Router
from edgewise.routers.uncertainty import Entropy, MaxProb
from edgewise_lab.evaluation.systems import Decoded, paired
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.training.fit import Recipe

ROOT = Path(__file__).parents[2]
QUESTION = Question("q", "zoo", "Which?", "b", "choice", choices=("a", "b"))
NOTHING = cast(Step, None)
"""For a router that must not look at the step."""


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LlamaModel, LocalCloud, Models]]:
    with ExitStack() as stack:
        edge, cloud = opened(stack)
        yield edge, cloud, stack.enter_context(closing(Models(edge, cloud.model, 96)))


@pytest.mark.parametrize("router", [Entropy(), MaxProb()])
def test_a_tree_gives_the_decoders_answers(
    pair: tuple[LlamaModel, LocalCloud, Models], router: Router
) -> None:
    edge, cloud, models = pair
    for question in first_of_each(pocketqa("test"), 2).questions:
        tree = Tree(question, models)
        for threshold in (0.9, 0.02, 0.3, 0.1):
            found = tree.walk("router", gates.Plain(router), threshold)
            told = Decoded(paired(edge, router, threshold, cloud), 96).answer(question)
            for name in ("text", "right", "strict", "output_tokens", "cloud_tokens", "changed"):
                assert getattr(found, name) == getattr(told, name)


def test_three_tokens_are_all_that_their_router_sees(tmp_path: Path) -> None:
    """It learns which words come before a token that matters, and nothing of the model's state."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 9, 40).tolist() for _ in range(60)]
    planted = [[*ids[:10], 3, 4, *ids[12:]] for ids in texts]
    values = [[float(ids[max(0, at - 2) : at] == [3, 4]) for at in range(40)] for ids in planted]
    recipe = Recipe(batch=256)
    gates.saved(gates.ThreeTokens.fit(planted, values, 9, recipe), tmp_path / "gate")
    router = gates.ThreeTokens(gates.loaded(tmp_path / "gate"))
    assert router.score(NOTHING, [7, 3, 4]) > 0.8
    assert router.score(NOTHING, [3, 4, 7]) < 0.2
    assert router.score(NOTHING, []) < 0.2
    far = router.score(NOTHING, [1, 1, 5, 7, 3, 4])
    assert far == pytest.approx(router.score(NOTHING, [8, 2, 0, 7, 3, 4]), abs=1e-3)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.2])
@pytest.mark.parametrize("drift", [0.7, 1.0, 1.5])
def test_a_search_finds_the_share_that_is_realised(share: float, drift: float) -> None:
    """Consults change the scores that follow: more or fewer are consulted than it looked like."""
    scores = np.random.default_rng(0).random(50_000)
    tries: list[float] = []

    def realised(threshold: float) -> float:
        tries.append(threshold)
        return float((scores >= threshold).mean()) ** (1 / drift)

    assert realised(settled(search(share, scores.tolist()), realised)) == pytest.approx(
        share, rel=0.05
    )
    assert len(tries) <= 13


def settled(running: Search, realised: Callable[[float], float]) -> float:
    """What a search ends with, given what its thresholds realise."""
    asked = next(running)
    while True:
        try:
            asked = running.send(realised(asked))
        except StopIteration as stop:
            return stop.value


def compared(work: Path, *given: str) -> str:
    """What the command prints, for its smallest sizes."""
    command = [sys.executable, "-m", "benchmarks.routers", "--work", str(work)]
    command += ["--labels", "value", "--seeds", "1", "--shares", "0.05"]
    command += ["--train", "20", "--calibration", "3", "--questions", "2", *given]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_whole_comparison(tmp_path: Path) -> None:
    """Its smallest run, twice: the second finds everything done and says the same."""
    pytest.importorskip("torch")
    told = compared(tmp_path, "--sets", "test", "left-out")
    assert told.count("| value | ") == 4  # a row in both tables of each set
    for row in ("three tokens", "position", "oracle", "query level, trained", "commit point"):
        assert f"| {row} |" in told
    answers = (tmp_path / "answers" / "test.jsonl").read_bytes()
    assert compared(tmp_path, "--sets", "test", "left-out") == told
    assert (tmp_path / "answers" / "test.jsonl").read_bytes() == answers
    assert "| hidden + top_logprobs + scalars | " in compared(tmp_path, "--ablation")
