"""The comparison of routers: its answers are the decoder's, its gates see what they may see."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

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
