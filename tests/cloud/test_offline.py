"""A link that goes and comes back while answers are written: real sockets, a real engine."""

import time
from collections.abc import Iterator

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, prompt_ids
from edgewise.routers.constant import Constant
from edgewise.testing.link import Link, Quality
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server

ASKED = [Message("user", "Tell me about copper.")]
pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def edge() -> Iterator[LlamaModel]:
    with LlamaModel(bundled("edge"), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with llama_server(bundled("cloud")) as url, gateway([url]) as running:
        yield running.url


def linked(edge: LlamaModel, url: str) -> tuple[Decoder, Link, GatewayCloud]:
    link = Link("127.0.0.1", int(url.rpartition(":")[2]), Quality(round_trip=0.02))
    cloud = GatewayCloud(link.url)
    cloud.check(edge.tokenizer)
    policy = Policy(threshold=0.5, speculate=16)
    return Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud), link, cloud


def answered(decoder: Decoder, tokens: int = 24) -> list[Token]:
    ids = prompt_ids(decoder.edge.tokenizer, ASKED)
    return list(decoder.generate(ids, max_tokens=tokens).tokens)


@pytest.mark.parametrize("how", ["stall", "refuse"])
def test_a_link_that_goes_costs_one_deadline_once(edge: LlamaModel, served: str, how: str) -> None:
    decoder, link, cloud = linked(edge, served)
    try:
        for _ in range(3):  # the deadline follows the latency
            answered(decoder)
        ids = prompt_ids(edge.tokenizer, ASKED)
        tokens: list[Token] = []
        with decoder.stream(ids, max_tokens=24) as events:
            for event in events:
                if isinstance(event, Token):
                    tokens.append(event)
                    if event.index == 5:
                        getattr(link, how)()
        offline = [(token.source, token.reason) for token in tokens[6:]]
        waited = [reason for _, reason in offline if reason == "timeout"]
        assert len(waited) == (how == "stall")
        assert offline[-1] == ("edge", "circuit_open")
        # The next answer, still offline, does not wait at all.
        assert {token.reason for token in answered(decoder)} == {"circuit_open"}

        link.restore()
        patience = time.monotonic() + 60
        while "cloud" not in {token.source for token in answered(decoder)}:
            assert time.monotonic() < patience
    finally:
        cloud.close()
        link.close()
