"""`--cloud-model` and the cloud's key: which of many models is meant, and what travels."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from edgewise import opening
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway import GatewayCloud
from edgewise.engines.connections import checked_address
from edgewise.errors import CloudRejected, UsageError
from edgewise.pair import Pair
from edgewise.prompts import Prompt
from edgewise.settings import Settings
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import ScriptedEngine, said
from tests.gateway.running import gateway

NAMES = [f"owner/model-{number}" for number in range(300)]


@contextmanager
def serving(dialect: Dialect, names: list[str]) -> Iterator[ScriptedEngine]:
    """An engine with many models."""
    models = [{"id": name, "owned_by": DIALECTS[dialect].owner} for name in names]
    with closing(ScriptedEngine(dialect=dialect)) as server:
        server.replies["/v1/models"] = said({"data": models})
        yield server


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("https://host.example/v1", "https://host.example"),
        ("https://host.example/v1/", "https://host.example"),
        ("https://host.example:8443//", "https://host.example:8443"),
        ("https://host.example/inference/v1", "https://host.example/inference"),
        ("https://host.example/a/v1/chat/completions/", "https://host.example/a"),
        ("https://host.example/v1beta", "https://host.example/v1beta"),
        ("https://host.example/api/myv1", "https://host.example/api/myv1"),
        ("http://v1", "http://v1"),
        ("http://v1/v1", "http://v1"),
    ],
)
def test_a_version_at_the_end_of_an_address_is_taken_as_meant(given: str, meant: str) -> None:
    assert checked_address(given) == meant
    for engine in ("vllm", "gateway"):
        cloud = open_engine(given, engine=engine)
        assert cloud.name == meant
        cloud.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_named_model_is_the_one_that_is_asked(dialect: Dialect) -> None:
    with serving(dialect, NAMES) as server:
        cloud = open_engine(server.url + "/v1", model=NAMES[250])
        cloud.check_vocabulary(ByteTokenizer())
        cloud.open(Prompt((104, 105))).ask(ConsultRequest([104, 105], 1, 30)).result()
        cloud.close()
        assert cloud.engine.described.model == NAMES[250]
        asked = [one.body["model"] for one in server.requests if "model" in one.body]
        assert set(asked) == {NAMES[250]}
        named = [one for one in server.requests if one.path in ("/tokenize", "/v1/completions")]
        assert all(one.body["model"] == NAMES[250] for one in named)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_name_that_is_not_served_is_one_sentence_with_some_that_are(dialect: Dialect) -> None:
    with serving(dialect, ["x" * 5_000, *NAMES]) as server:
        cloud = open_engine(server.url, model="owner/modle-12")
        with pytest.raises(CloudRejected) as refused:
            cloud.check_vocabulary(ByteTokenizer())
        cloud.close()
        assert "/tokenize" not in server.paths
    told = str(refused.value)
    assert told.startswith(f"'{server.url}' serves no model 'owner/modle-12'")
    assert "'owner/model-12'" in told
    assert told.endswith(" and 293 more.")
    assert len(told) < 600
    assert refused.value.setting == "cloud_model"


def test_a_gateway_serves_what_it_serves() -> None:
    engine = ScriptedEngine()
    with gateway([engine.url]) as running:
        right = open_engine(running.url, model="scripted")
        assert isinstance(right, GatewayCloud)
        right.check_vocabulary(ByteTokenizer())
        right.close()
        wrong = open_engine(running.url, model="other")
        with pytest.raises(CloudRejected, match=r"serves no model 'other'; it serves 'scripted'\."):
            wrong.check_vocabulary(ByteTokenizer())
        wrong.close()
    engine.close()


def test_a_pair_takes_both() -> None:
    edge = ScriptedEdge(replying("blue", prompt="sky: "))
    with serving("vllm", NAMES) as server:
        wishes: dict[str, Any] = {"cloud_model": NAMES[3], "cloud_key": "sk-provider"}
        with Pair(edge, cloud=f"{server.url}/v1", router="constant:0", **wishes) as pair:
            assert isinstance(pair.cloud, EngineCloud)
            assert pair.cloud.engine.described.model == NAMES[3]
        keys = {one.headers.get("Authorization") for one in server.requests}
        assert keys == {"Bearer sk-provider"}


def test_an_adapter_of_sglangs_is_refused() -> None:
    """Its short form would answer as the model without the adapter."""
    adapter = {"id": "mine", "owned_by": "sglang", "parent": "base"}
    models = {"data": [{"id": "base", "owned_by": "sglang", "parent": None}, adapter]}
    with closing(ScriptedEngine(dialect="sglang")) as server:
        server.replies["/v1/models"] = said(models)
        cloud = open_engine(server.url, model="mine")
        with pytest.raises(CloudRejected, match=r"'mine' .* is an adapter of 'base'; name 'base'"):
            cloud.check_vocabulary(ByteTokenizer())
        cloud.close()


@pytest.mark.parametrize("key", ["sk-1\n", "sk-1\r\nX-Other: 1", "sk 1", "schlüssel"])
def test_what_can_be_no_key_is_a_sentence(key: str) -> None:
    for engine in ("vllm", "gateway"):
        chosen = Settings(cloud="http://127.0.0.1:9", cloud_engine=engine, cloud_key=key)
        with pytest.raises(UsageError, match="cloud-key"):
            opening.open_cloud(chosen, ScriptedEdge(noise()))


@pytest.mark.parametrize("cloud", ["none", "bundled"])
def test_nothing_is_wished_of_a_cloud_at_no_url(cloud: str) -> None:
    with pytest.raises(UsageError, match=repr(cloud)) as refused:
        opening.open_cloud(Settings(cloud=cloud, cloud_model="large"), ScriptedEdge(noise()))
    assert refused.value.setting == "cloud_model"
