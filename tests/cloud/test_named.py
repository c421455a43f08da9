"""The door for clouds: a package adds one under `edgewise.cloud`, and it is consulted by name."""

import asyncio
import importlib.metadata
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import EntryPoint

import pytest

from edgewise import opening
from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.registry import ENGINES
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.gateway.fleet import engines_at
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.servers.chat import ChatServer
from edgewise.servers.openai import VllmServer
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_text import ScriptedText

Add = Callable[..., None]


class ShoutingCloud(ScriptedCloud):
    """A cloud of a third party: it writes exclamation marks."""

    def __init__(self, url: str, *, key: str | None, model: str | None) -> None:
        super().__init__(replying("!!!!", prompt="sky: "))
        self.name, self.key = url, key


class MyEngine(VllmServer):
    """An engine of a third party, by ids."""

    name = "mine"


MY_TEXT = ChatServer(name="my words")
"""An API of a third party, by text."""


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Add:
    """Install a package that adds entry points (names to targets) to a group."""
    real = importlib.metadata.entry_points

    def install(group: str = "edgewise.cloud", **targets: str) -> None:
        points = [EntryPoint(name, target, group) for name, target in targets.items()]

        def found(**wanted: str) -> object:
            return points if wanted.get("group") == group else real(**wanted)

        monkeypatch.setattr("edgewise.registry.entry_points", found)

    return install


def test_a_cloud_of_a_package_is_consulted_by_its_name(add: Add) -> None:
    add(shouting=f"{__name__}:ShoutingCloud")
    assert "shouting" in ENGINES.names()
    cloud = open_engine("shout://somewhere", key="sk", engine="shouting")
    assert isinstance(cloud, ShoutingCloud)
    assert (cloud.name, cloud.key) == ("shout://somewhere", "sk")
    edge = ScriptedEdge(replying("so so", prompt="sky: "))
    decoder = Decoder(edge, router=Constant(1.0), policy=Policy(threshold=0.5), cloud=cloud)
    answer = decoder.generate(list(b"sky: "), max_tokens=4)
    assert answer.text == "!!!!"
    assert {token.source for token in answer.tokens} == {"cloud"}


@pytest.mark.parametrize("cloud", ["http://127.0.0.1:9", "none", "bundled"])
def test_an_unknown_name_is_one_sentence_wherever_the_cloud_is(cloud: str) -> None:
    """Never ignored: not with a file for a cloud, not without any."""
    with pytest.raises(UsageError) as refused:
        opening.open_cloud(Settings(cloud=cloud, cloud_engine="vlm"), ScriptedEdge(noise()))
    assert "'vllm'" in (refused.value.hint or "")
    assert refused.value.setting == "cloud_engine"


def test_a_built_in_name_is_taken(add: Add) -> None:
    add(vllm=f"{__name__}:ShoutingCloud")
    with closing(open_engine("http://127.0.0.1:9", engine="vllm")) as cloud:
        assert isinstance(cloud, EngineCloud)
        assert cloud.engine.dialect == "vLLM"
    with pytest.raises(UsageError, match="vllm"):
        ENGINES.names()


def test_an_engine_of_a_package_is_one_for_a_device_and_for_a_gateway(add: Add) -> None:
    add(mine=f"{__name__}:MyEngine", words=f"{__name__}:MY_TEXT")
    with closing(open_engine("http://127.0.0.1:9", engine="mine")) as cloud:
        assert isinstance(cloud, EngineCloud)
        assert cloud.engine.dialect == "mine"
    assert asyncio.run(_kinds("http://127.0.0.1:9", kind="mine")) == ["mine"]


def test_a_dialect_of_a_package_is_asked_by_text(add: Add) -> None:
    add(words=f"{__name__}:MY_TEXT")
    with closing(ScriptedText("chat")) as server:
        cloud = connect(server.url, ByteTokenizer(), engine="words")
        proof = cloud.vocabulary_check
        with closing(cloud):
            assert "my words" in proof
    with pytest.raises(UsageError):
        asyncio.run(_kinds("http://127.0.0.1:9", kind="words"))


def test_a_gateway_starts_while_one_of_its_engines_is_down() -> None:
    with (
        closing(ScriptedEngine(dialect="vllm")) as gone,
        closing(ScriptedEngine(dialect="vllm")) as there,
    ):
        gone.stop()
        assert asyncio.run(_kinds(gone.url, there.url, kind="auto")) == ["vLLM", "vLLM"]
        there.stop()
        with pytest.raises(CloudUnavailable):
            asyncio.run(_kinds(gone.url, there.url, kind="auto"))


async def _kinds(*addresses: str, kind: str) -> list[str]:
    engines = await engines_at(addresses, key=None, kind=kind)
    kinds = [engine.dialect for engine in engines]
    for engine in engines:
        await engine.close()
    return kinds
