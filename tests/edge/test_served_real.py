"""A real llama-server as the edge keeps the contract of all, and answers as the engine in here."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edgewise import Pair
from edgewise.addresses import bundled
from edgewise.edge.base import EdgeOptions
from edgewise.edge.served.model import ServedEdge, open_server
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.contracts.test_edge import Backend
from tests.edge import test_served
from tests.llama_server_process import llama_server

pytestmark = pytest.mark.deep

SLOTS = {"n_ctx": 3 * 256, "n_parallel": 3, "kv_unified": False}
QUESTIONS = 20


@pytest.fixture(scope="module")
def server(bpe_path: Path) -> Iterator[str]:
    with llama_server(bpe_path, flags=SLOTS) as url:
        yield url


class TestServed(test_served.TestServers):
    @pytest.fixture
    def backend(self, server: str) -> Iterator[Backend]:
        def make(**options: Any) -> ServedEdge:
            return open_server(server, replace(EdgeOptions(), **options))

        made = Backend(make)
        yield made
        for model in made.open_models:
            model.close()


@pytest.fixture(scope="module")
def at_url() -> Iterator[str]:
    with llama_server(bundled("edge")) as url:
        yield url


@pytest.mark.parametrize(
    ("router", "how"),
    [
        ("max-prob", {"cloud_share": 0.0}),
        ("entropy", {"threshold": 0.3}),
        ("max-prob", {"cloud_share": 1.0}),
    ],
)
def test_it_answers_as_the_engine_here(at_url: str, router: str, how: dict[str, float]) -> None:
    """Both compute in other batches, so of 20 answers one or two go another way at a near tie."""
    cloud: dict[str, Any] = {"cloud": "bundled", "router": router, **how}
    questions = [question.prompt for question in pocketqa("test").questions[:QUESTIONS]]
    with (
        closing(Pair(str(bundled("edge")), **cloud)) as here,
        closing(Pair(at_url, **cloud)) as there,
    ):
        same = 0
        for question in questions:
            own, served = (pair.ask(question, max_tokens=80) for pair in (here, there))
            pairs = list(zip(own.tokens, served.tokens, strict=False))
            differ = next((i for i, (a, b) in enumerate(pairs) if a.id != b.id), len(pairs))
            same += [t.id for t in own.tokens] == [t.id for t in served.tokens]
            apart = [abs(a.score - b.score) for a, b in pairs[:differ]]
            assert not apart or sum(apart) / len(apart) < 0.01
    assert same >= QUESTIONS - 2


def test_characters_of_several_tokens(at_url: str) -> None:
    prompt = "Wörter: 🙂 日本語 🤷‍♀️ ünïcödé"
    with Pair(str(bundled("edge")), cloud="none") as here, Pair(at_url, cloud="none") as there:
        own = here.ask(prompt, max_tokens=30)
        assert own.text == there.ask(prompt, max_tokens=30).text
