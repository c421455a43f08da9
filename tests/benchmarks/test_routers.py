"""The comparison of routers: its answers are the decoder's, its gates see what they may see."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from benchmarks.routers import gates
from benchmarks.routers.plan import first_of_each
from benchmarks.routers.trainings import opened
from benchmarks.routers.tree import Models, Tree
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.routers.base import Router
from edgewise.routers.untrained import Entropy, MaxProb
from edgewise_lab.evaluation.systems import Decoded, paired
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.programs import python

ROOT = Path(__file__).parents[2]


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


def compared(work: Path, *given: str) -> str:
    """What the command prints, for its smallest sizes."""
    command = ["-m", "benchmarks.routers", "--work", str(work)]
    command += ["--labels", "value", "--seeds", "1", "--shares", "0.05"]
    command += ["--train", "20", "--calibration", "3", "--questions", "2", *given]
    return python(*command, folder=ROOT).stdout


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
