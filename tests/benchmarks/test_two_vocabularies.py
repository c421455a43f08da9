"""Joins of two vocabularies, with a real llama-server: what both wrote stands, byte by byte."""

from contextlib import closing

import pytest

from benchmarks.two_vocabularies import Overheard, joined
from edgewise.addresses import bundled
from edgewise.cloud.bridge.text import TextCloud
from edgewise.cloud.connect import connect
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.tokenizer import open_tokenizer
from edgewise.engines.registry import AUTO
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.llama_server_process import llama_server
from tests.pocket_models import OTHER


@pytest.mark.parametrize("way", ["text", "ids"])
def test_twenty_answers_join_byte_by_byte(way: str) -> None:
    questions = [one.prompt for one in pocketqa().questions[:20]]
    other = OTHER
    own = open_tokenizer(str(other)) if way == "ids" else None
    with llama_server(other) as url, LlamaModel(bundled("edge"), threads=1) as edge:
        engine = AUTO if way == "ids" else "llama-server-text"
        cloud = connect(url, edge.tokenizer, own=own, engine=engine)
        proof = cloud.proof
        with closing(cloud):
            assert isinstance(cloud, TextCloud) == (way == "text")
            assert "exact, keeps blanks" in proof or way == "ids"
            found = joined(edge, cloud, questions, most=24, threshold=0.6)
    assert found.wrong == ()
    assert found.broken == 0
    assert found.cloud_tokens > 40
    assert found.consults["answered"] > 20
    assert found.consults["protocol"] == found.consults["timeout"] == 0


@pytest.mark.parametrize(
    ("sent", "reply", "answer", "words", "right"),
    [
        ("so", " it is", "so", " it", True),
        ("so lo", "ng it is", "so", " long", True),
        ("so lo", "ng it is", "so", " loud", False),
        ("so", " it is", "so ", "it", True),
        ("so", "it is", "so ", "it", True),
        ("so", "\nit is", "so ", "\nit", True),
        ("so", " it is", "so", "it", False),
        ("so", " it is", "so ", " it", False),
        ("so", " it is", "so", "  it", False),
        ("so", " it is", "sa", " it", False),
    ],
)
def test_a_join_that_is_wrong_is_seen(
    sent: str, reply: str, answer: str, words: str, right: bool
) -> None:
    ear = Overheard()
    ear.sent, ear.reply = sent, reply
    ear.check(answer, words)
    assert (not ear.wrong) == right
