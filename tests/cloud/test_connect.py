"""Which way a cloud at a URL is reached, and what is said where none leads there."""

import asyncio
import importlib.metadata
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from aiohttp import web

from edgewise import opening
from edgewise.addresses import bundled
from edgewise.advice import cloud_pace
from edgewise.cloud.adapter import text as adapter
from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.adapter.text import Capabilities, TextCloud
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway import GatewayCloud
from edgewise.cloud.registry import ENGINES
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.engines.connections import checked_address
from edgewise.errors import (
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
    UsageError,
    VocabularyMismatch,
)
from edgewise.gateway.fleet import engines_at
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Constant, Random
from edgewise.servers.chat import ChatServer
from edgewise.servers.openai import VllmServer
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.doubles.completing import completing
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import ScriptedEngine, said
from tests.doubles.scripted_text import Habit, ScriptedText
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server
from tests.pocket_models import OTHER
from tests.server.serving import serving

EDGE = ByteTokenizer()
ASKED = "Count. "
PROMPT = Prompt(tuple(ASKED.encode()), (Message("user", "Count."),))
COUNTED = "one two three four five six seven eight nine ten"


def connected(url: str, **options: Any) -> "closing[CloudModel]":
    return closing(connect(url, EDGE, **options))


def answered(cloud: CloudModel, *, seed: int = 0) -> Answer:
    """The edge counts as well, so that whatever the cloud's words make of it shows."""
    decoder = Decoder(
        ScriptedEdge(completing(COUNTED, prompt=ASKED)),
        router=Random(seed),
        policy=Policy(threshold=0.5, deadline=60.0),
        cloud=cloud,
    )
    return decoder.generate(PROMPT, max_tokens=60)


def test_a_program_with_an_event_loop_connects_too() -> None:
    """A notebook's cells run in one."""

    async def connected() -> str:
        with Pair(ScriptedEdge(completing(COUNTED, prompt=ASKED)), cloud=engine.url) as pair:
            assert pair.cloud is not None
            return pair.cloud.name

    with closing(ScriptedText("chat")) as engine:
        assert asyncio.run(connected())


@pytest.mark.parametrize("name", ["ollama", "deepseek", "vllm-text", "mistral", "chat"])
def test_a_dialect_that_is_named_is_the_one_that_is_asked(name: str) -> None:
    with closing(ScriptedText(name)) as server, connected(server.url, engine=name) as cloud:
        assert isinstance(cloud, TextCloud)
        assert "exact, keeps blanks" in cloud.vocabulary_check
        assert len(server.asked) == 3
        answer = answered(cloud)
    assert answer.text == COUNTED
    assert answer.usage.cloud_tokens > 0
    assert answer.usage.failed_calls == 0
    assert answer.usage.cloud_completion_tokens > 0
    assert answer.usage.sent.tokens == 0
    assert answer.usage.cloud_prompt_cached is not None or name == "ollama"


@pytest.mark.parametrize("engine", ["auto", "ollama"])
def test_the_tag_of_an_ollama_model_may_be_left_out(engine: str) -> None:
    with closing(ScriptedText("ollama")) as server:
        server.models = ["q15:7b", "q15:latest"]
        with connected(server.url, engine=engine, model="q15") as cloud:
            assert answered(cloud).text == COUNTED
        assert {json.loads(body)["model"] for _, body in server.requests} == {"q15:latest"}


def test_an_edgewise_server_is_called_what_it_is() -> None:
    with closing(ScriptedText("edgewise")) as server, connected(server.url) as cloud:
        assert isinstance(cloud, TextCloud)
        assert cloud.engine.dialect == "Edgewise"


@pytest.mark.deep
def test_an_edgewise_server_goes_on_with_an_answer() -> None:
    """A real one, of the large bundled model."""
    question = pocketqa().questions[1].prompt
    flags = ("--edge", str(bundled("cloud")), "--cloud", "none", "--threads", "1")
    options: dict[str, Any] = {"router": Constant(1.0), "threshold": 0.0, "deadline": 30.0}
    options["cloud_model"] = "edgewise:edge"
    with serving(*flags) as url, Pair("bundled", cloud=url, **options) as pair:
        right = Pair(str(bundled("cloud")), cloud="none", threads=1).ask(question)
        answer = pair.ask(question)
    assert answer.usage.failed_calls == 0
    assert answer.usage.cloud_tokens > 5
    assert answer.text.split() == right.text.split()


UNKNOWN = ["chat", "mistral", "deepseek", "qwen", "moonshot", "ollama"]


@pytest.mark.parametrize("habit", ["exact", "echo"])
@pytest.mark.parametrize("dialect", UNKNOWN)
def test_an_unknown_api_is_asked_by_text(dialect: str, habit: Habit, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "edgewise")
    with closing(ScriptedText(dialect, habit=habit)) as server, connected(server.url) as cloud:
        assert isinstance(cloud, TextCloud)
        assert cloud.capabilities.echoes == (habit == "echo")
        for seed in range(3):
            answer = answered(cloud, seed=seed)
            assert answer.text == COUNTED
            assert answer.usage.cloud_tokens > 0
    (told,) = [one.message for one in caplog.records if "is asked by text, as" in one.message]
    assert server.url in told


@pytest.mark.parametrize(
    ("habit", "why"),
    [("restart", "restarts"), ("refuse", "does not accept"), ("strip", "leading space")],
)
def test_one_that_goes_on_in_no_dialect_is_one_sentence(habit: Habit, why: str) -> None:
    with closing(ScriptedText(habit=habit)) as server:
        with pytest.raises(CloudRejected, match="dialect") as refused:
            connect(server.url, EDGE)
        assert why in refused.value.message
        assert "chat" in refused.value.message
        assert "name the cloud's tokenizer" in (refused.value.hint or "")
        assert refused.value.setting == "cloud_tokenizer"
        assert "\n" not in str(refused.value)
        with pytest.raises(CloudRejected, match=why):
            connect(server.url, EDGE, engine="chat")


class Breaking(ScriptedText):
    """An API that breaks at the paths of others, where most decline."""

    def serve(self, routes: Iterable[web.RouteDef], **options: Any) -> int:
        async def broken(_: web.Request) -> web.Response:
            return web.Response(status=500)

        others = [web.post(path, broken) for path in ("/apply-template", "/api/chat")]
        return super().serve([*routes, *others], **options)


def test_an_api_that_breaks_at_other_paths_is_asked_as_it_likes() -> None:
    with closing(Breaking("chat")) as server, connected(server.url) as cloud:
        assert answered(cloud).text == COUNTED
        # One that continues in no dialect may do so later.
        server.habit = "restart"
        with pytest.raises(CloudUnavailable) as found:
            connect(server.url, EDGE)
        assert {"ollama", "500", "restarts"} <= {*re.findall(r"\w+", found.value.message)}


@pytest.mark.deep
@pytest.mark.parametrize("host", ["host..invalid", "x" * 64 + ".invalid"])
def test_a_host_whose_name_cannot_be_one_is_not_reached(host: str) -> None:
    url = f"http://{host}"
    for engine in ("auto", "vllm", "gateway", "chat"):
        with pytest.raises(CloudUnavailable) as found:
            connect(url, EDGE, engine=engine, model="m")
        assert repr(url) in found.value.message
    with closing(open_engine(url, engine="gateway")) as cloud, pytest.raises(CloudUnavailable):
        cloud.open(PROMPT).ask(ConsultRequest([1], 1, 2)).result()


def test_an_api_restarted_with_another_model_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was asked while it was down: a new connection alone tells."""
    monkeypatch.setattr(adapter, "FRESH_SECONDS", -1.0)
    with closing(ScriptedText("llama-server-text")) as first:
        cloud = connect(first.url, EDGE, engine="llama-server-text")
        assert answered(cloud).usage.failed_calls == 0
    second = ScriptedText("llama-server-text", port=first.port, habit="echo")
    second.models = ["another"]
    with closing(second), closing(cloud):
        assert isinstance(cloud, TextCloud)
        # Neither is the first model's template used, nor what the second one made of it.
        assert answered(cloud).text == COUNTED
        assert cloud.capabilities.echoes
        assert "/apply-template" in [path for path, _ in second.requests]
        assert answered(cloud).usage.failed_calls == 0


def test_a_mistake_of_the_users_is_told_at_once() -> None:
    own = ByteTokenizer("<other>")
    with closing(ScriptedText("completions")) as server:
        with pytest.raises(UsageError, match="completions") as wanting:
            connect(server.url, EDGE, engine="completions")
        assert wanting.value.setting == "cloud_tokenizer"
        assert server.requests == []
    with closing(ScriptedText()) as server:
        with pytest.raises(UsageError) as useless:
            connect(server.url, EDGE, engine="chat", own=own)
        assert useless.value.setting == "cloud_tokenizer"
        server.key = "right"
        with pytest.raises(CloudRefused, match="refused the key"):
            connect(server.url, EDGE, key="wrong")
        assert server.requests == []
        with pytest.raises(CloudRejected, match="serves no model 'mine'") as refused:
            connect(server.url, EDGE, key="right", model="mine")
        assert refused.value.setting == "cloud_model"
        with pytest.raises(CloudRejected, match=r"\(completions: "):
            connect(server.url, EDGE, key="right", own=own)
    with pytest.raises(CloudUnavailable):
        connect("http://127.0.0.1:9", EDGE)


def test_an_engine_by_ids_stays_one(engine: ScriptedEngine) -> None:
    with connected(engine.url) as cloud:
        assert isinstance(cloud, EngineCloud)
        assert "same ids" in cloud.vocabulary_check
    engine.mark = 1
    with pytest.raises(VocabularyMismatch, match="name the engine 'llama-server-text'"):
        connect(engine.url, EDGE, engine="llama-server")
    with pytest.raises(VocabularyMismatch, match="as its tokenizer does"):
        connect(engine.url, EDGE, own=ByteTokenizer("<other>"))


@pytest.mark.deep
def test_a_real_engine_of_another_vocabulary_is_asked(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "edgewise")
    with ExitStack() as stack:
        url = stack.enter_context(llama_server(OTHER))
        edge = stack.enter_context(LlamaModel(bundled("edge"), threads=1)).tokenizer
        cloud = connect(url, edge)
        stack.enter_context(closing(cloud))
        assert isinstance(cloud, TextCloud)
        assert cloud.engine.dialect == "llama-server"
        (told,) = [one.message for one in caplog.records if "by text" in one.message]
        assert "vocabularies differ" in told
        found = cloud_pace(cloud, edge, 60.0, lines=(70, 12))
        assert found.computed is not None
        assert found.computed < found.prompt / 2
        own = stack.enter_context(LlamaModel(OTHER, threads=1)).tokenizer
        by_ids = connect(url, edge, own=own)
        stack.enter_context(closing(by_ids))
        assert isinstance(by_ids, Adapter)
        with pytest.raises(VocabularyMismatch, match="llama-server-text"):
            connect(url, edge, engine="llama-server")


@pytest.mark.deep
def test_what_real_servers_do_shows_with_a_model_that_cannot_count() -> None:
    """llama-server's chat repeats what it is sent."""
    own = open_tokenizer(str(OTHER))
    with LlamaModel(bundled("edge"), threads=1) as model, llama_server(OTHER) as url:
        for name, echoes in (("chat", True), ("completions", False)):
            used = None if echoes else own
            with closing(connect(url, model.tokenizer, engine=name, own=used)) as cloud:
                assert isinstance(cloud, TextCloud)
                assert cloud.capabilities == Capabilities(echoes=echoes)


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
    """Install a package that adds these entry points."""
    real, group = importlib.metadata.entry_points, "edgewise.cloud"

    def install(**targets: str) -> None:
        points = [EntryPoint(name, f"{__name__}:{targets[name]}", group) for name in targets]

        def found(**wanted: str) -> object:
            return points if wanted.get("group") == group else real(**wanted)

        monkeypatch.setattr("edgewise.registry.entry_points", found)

    return install


def test_a_cloud_of_a_package_is_consulted_by_its_name(add: Add) -> None:
    add(shouting="ShoutingCloud")
    assert "shouting" in ENGINES.names()
    cloud = open_engine("shout://somewhere", key="sk", engine="shouting")
    assert isinstance(cloud, ShoutingCloud)
    assert (cloud.name, cloud.key) == ("shout://somewhere", "sk")
    edge = ScriptedEdge(replying("so so", prompt="sky: "))
    decoder = Decoder(edge, router=Constant(1.0), policy=Policy(threshold=0.5), cloud=cloud)
    answer = decoder.generate(list(b"sky: "), max_tokens=4)
    assert answer.text == "!!!!"
    assert {token.source for token in answer.tokens} == {"cloud"}
    # A name that is built in is taken.
    add(vllm="ShoutingCloud")
    with closing(open_engine("http://127.0.0.1:9", engine="vllm")) as built_in:
        assert isinstance(built_in, EngineCloud)
        assert built_in.engine.dialect == "vLLM"
    with pytest.raises(UsageError, match="vllm"):
        ENGINES.names()


def test_an_engine_of_a_package_is_one_for_a_device_and_for_a_gateway(add: Add) -> None:
    """A dialect of one is asked by text, and is none for a gateway."""
    add(mine="MyEngine", words="MY_TEXT")
    with closing(open_engine("http://127.0.0.1:9", engine="mine")) as cloud:
        assert isinstance(cloud, EngineCloud)
        assert cloud.engine.dialect == "mine"
    assert asyncio.run(_kinds("http://127.0.0.1:9", kind="mine")) == ["mine"]
    with closing(ScriptedText("chat")) as server, connected(server.url, engine="words") as by_text:
        assert "my words" in by_text.vocabulary_check
    with pytest.raises(UsageError):
        asyncio.run(_kinds("http://127.0.0.1:9", kind="words"))


def test_a_gateway_starts_while_one_of_its_engines_is_down() -> None:
    gone, there = (ScriptedEngine(dialect="vllm") for _ in range(2))
    with closing(gone), closing(there):
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


NAMES = [f"owner/model-{number}" for number in range(300)]


@contextmanager
def with_models(
    dialect: Dialect, names: list[str], model: str
) -> Iterator[tuple[ScriptedEngine, EngineCloud]]:
    """An engine with many models, and one of them that is named."""
    models = [{"id": name, "owned_by": DIALECTS[dialect].owner} for name in names]
    with closing(ScriptedEngine(dialect=dialect)) as server:
        server.replies["/v1/models"] = said({"data": models})
        with closing(open_engine(server.url + "/v1", model=model)) as cloud:
            assert isinstance(cloud, EngineCloud)
            yield server, cloud


MEANT = """
https://host.example/v1                          https://host.example
https://host.example/v1/                         https://host.example
https://host.example:8443//                      https://host.example:8443
https://host.example/inference/v1                https://host.example/inference
https://host.example/a/v1/chat/completions/      https://host.example/a
https://host.example/v1beta                      https://host.example/v1beta
https://host.example/api/myv1                    https://host.example/api/myv1
http://v1                                        http://v1
http://v1/v1                                     http://v1
"""


def test_a_version_at_the_end_of_an_address_is_taken_as_meant() -> None:
    for given, meant in map(str.split, MEANT.strip().splitlines()):
        assert checked_address(given) == meant
        for engine in ("vllm", "gateway"):
            with closing(open_engine(given, engine=engine)) as cloud:
                assert cloud.name == meant


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_named_model_is_the_one_that_is_asked(dialect: Dialect) -> None:
    with with_models(dialect, NAMES, model=NAMES[250]) as (server, cloud):
        cloud.check_vocabulary(EDGE)
        cloud.open(Prompt((104, 105))).ask(ConsultRequest([104, 105], 1, 30)).result()
        assert cloud.engine.described.model == NAMES[250]
        asked = [one.body["model"] for one in server.requests if "model" in one.body]
        assert set(asked) == {NAMES[250]}
        named = [one for one in server.requests if one.path in ("/tokenize", "/v1/completions")]
        assert all(one.body["model"] == NAMES[250] for one in named)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_name_that_is_not_served_is_one_sentence_with_some_that_are(dialect: Dialect) -> None:
    with with_models(dialect, ["x" * 5_000, *NAMES], model="owner/modle-12") as (server, cloud):
        with pytest.raises(CloudRejected) as refused:
            cloud.check_vocabulary(EDGE)
        assert "/tokenize" not in server.paths
    told = str(refused.value)
    assert told.startswith(f"'{server.url}' serves no model 'owner/modle-12'")
    assert "'owner/model-12'" in told
    assert told.endswith(" and 293 more.")
    assert len(told) < 600
    assert refused.value.setting == "cloud_model"


def test_a_gateway_serves_what_it_serves(engine: ScriptedEngine) -> None:
    with gateway([engine.url]) as running:
        right = open_engine(running.url, model="scripted")
        assert isinstance(right, GatewayCloud)
        right.check_vocabulary(EDGE)
        wrong = open_engine(running.url, model="other")
        with pytest.raises(CloudRejected, match=r"serves no model 'other'; it serves 'scripted'\."):
            wrong.check_vocabulary(EDGE)
        right.close()
        wrong.close()


def test_a_pair_takes_both() -> None:
    wishes: dict[str, Any] = {"cloud_model": NAMES[3], "cloud_key": "sk-provider"}
    with with_models("vllm", NAMES, model=NAMES[0]) as (server, _):
        server.requests.clear()
        with Pair(ScriptedEdge(noise()), cloud=f"{server.url}/v1", **wishes) as pair:
            assert isinstance(pair.cloud, EngineCloud)
            assert pair.cloud.engine.described.model == NAMES[3]
        keys = {one.headers.get("Authorization") for one in server.requests}
        assert keys == {"Bearer sk-provider"}


def test_an_adapter_of_sglangs_is_refused() -> None:
    """Its short form would answer as the model without the adapter."""
    adapter = {"id": "mine", "owned_by": "sglang", "parent": "base"}
    models = [{"id": "base", "owned_by": "sglang", "parent": None}, adapter]
    with with_models("sglang", ["base"], model="mine") as (server, cloud):
        server.replies["/v1/models"] = said({"data": models})
        with pytest.raises(CloudRejected, match=r"'mine' .* is an adapter of 'base'; name 'base'"):
            cloud.check_vocabulary(EDGE)


@pytest.mark.parametrize("key", ["sk-1\n", "sk-1\r\nX-Other: 1", "sk 1", "schlüssel"])
@pytest.mark.parametrize("engine", ["vllm", "gateway"])
def test_what_can_be_no_key_is_a_sentence(engine: str, key: str) -> None:
    chosen = Settings(cloud="http://127.0.0.1:9", cloud_engine=engine, cloud_key=key)
    with pytest.raises(UsageError, match="cloud-key"):
        opening.open_cloud(chosen, ScriptedEdge(noise()))


@pytest.mark.parametrize("cloud", ["http://127.0.0.1:9", "none", "bundled"])
def test_what_no_cloud_has_is_one_sentence_wherever_it_is(cloud: str) -> None:
    """Never ignored: not with a file for a cloud, not without any."""
    with pytest.raises(UsageError) as refused:
        opening.open_cloud(Settings(cloud=cloud, cloud_engine="vlm"), ScriptedEdge(noise()))
    assert "'vllm'" in (refused.value.hint or "")
    assert refused.value.setting == "cloud_engine"
    if "://" not in cloud:
        with pytest.raises(UsageError, match=repr(cloud)) as wished:
            opening.open_cloud(Settings(cloud=cloud, cloud_model="large"), ScriptedEdge(noise()))
        assert wished.value.setting == "cloud_model"
