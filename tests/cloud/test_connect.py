"""Which way a cloud at a URL is reached, and what is said where none leads there."""

import asyncio
import json
import logging
import re
from collections.abc import Iterable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from aiohttp import web

from edgewise.addresses import bundled
from edgewise.advice import cloud_pace
from edgewise.cloud.adapter import text as adapter
from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.adapter.text import Capabilities, TextCloud
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.errors import (
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
    UsageError,
    VocabularyMismatch,
)
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Constant, Random
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.doubles.completing import completing
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_text import Habit, ScriptedText
from tests.llama_server_process import llama_server
from tests.pocket_models import OTHER
from tests.server.serving import serving

EDGE = ByteTokenizer()
ASKED = "Count. "
PROMPT = Prompt(tuple(ASKED.encode()), (Message("user", "Count."),))
COUNTED = "one two three four five six seven eight nine ten"

HOSTED = ["ollama", "deepseek", "vllm-text", "mistral", "chat"]


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


@pytest.mark.parametrize("name", HOSTED)
def test_a_dialect_that_is_named_is_the_one_that_is_asked(name: str) -> None:
    with closing(ScriptedText(name)) as server:
        cloud = connect(server.url, EDGE, engine=name)
        proof = cloud.vocabulary_check
        with closing(cloud):
            assert isinstance(cloud, TextCloud)
            assert "exact, keeps blanks" in proof
            asked = len(server.asked)
            assert asked == 3
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
        with closing(connect(server.url, EDGE, engine=engine, model="q15")) as cloud:
            assert answered(cloud).text == COUNTED
        assert {json.loads(body)["model"] for _, body in server.requests} == {"q15:latest"}


def test_an_edgewise_server_is_called_what_it_is() -> None:
    with closing(ScriptedText("edgewise")) as server, closing(connect(server.url, EDGE)) as cloud:
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


@pytest.mark.parametrize("habit", ["exact", "echo"])
@pytest.mark.parametrize("dialect", ["chat", "mistral", "deepseek", "qwen", "moonshot", "ollama"])
def test_an_unknown_api_is_asked_by_text_as_it_likes(
    dialect: str, habit: Habit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "edgewise")
    with closing(ScriptedText(dialect, habit=habit)) as server:
        cloud = connect(server.url, EDGE)
        with closing(cloud):
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
    with closing(Breaking("chat")) as server, closing(connect(server.url, EDGE)) as cloud:
        assert answered(cloud).text == COUNTED


def test_one_that_breaks_and_continues_in_no_dialect_may_do_so_later() -> None:
    with closing(Breaking("chat", habit="restart")) as server:
        with pytest.raises(CloudUnavailable) as found:
            connect(server.url, EDGE)
        assert {"ollama", "500", "restarts"} <= {*re.findall(r"\w+", found.value.message)}


@pytest.mark.parametrize("host", ["host..invalid", "x" * 64 + ".invalid"])
@pytest.mark.parametrize("engine", ["auto", "vllm", "gateway", "chat"])
def test_a_host_whose_name_cannot_be_one_is_not_reached(engine: str, host: str) -> None:
    with pytest.raises(CloudUnavailable) as found:
        connect(f"http://{host}", EDGE, engine=engine, model="m")
    assert repr(f"http://{host}") in found.value.message


def test_a_gateway_whose_name_cannot_be_one_is_not_asked() -> None:
    with closing(open_engine("http://host..invalid", engine="gateway")) as cloud:
        asked = cloud.open(PROMPT).ask(ConsultRequest([1], 1, 2))
        with pytest.raises(CloudUnavailable):
            asked.result()


def test_an_api_that_was_restarted_with_another_model_is_probed_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    with closing(ScriptedText()) as server:
        server.key = "right"
        with pytest.raises(CloudRefused, match="refused the key"):
            connect(server.url, EDGE, key="wrong")
        assert server.requests == []
        with pytest.raises(CloudRejected, match="serves no model 'mine'") as refused:
            connect(server.url, EDGE, key="right", model="mine")
        assert refused.value.setting == "cloud_model"
    with pytest.raises(CloudUnavailable):
        connect("http://127.0.0.1:9", EDGE)


def test_a_tokenizer_is_used_or_refused() -> None:
    own = ByteTokenizer("<other>")
    with closing(ScriptedText("completions")) as server:
        with pytest.raises(UsageError, match="completions") as refused:
            connect(server.url, EDGE, engine="completions")
        assert refused.value.setting == "cloud_tokenizer"
        assert server.requests == []
    with closing(ScriptedText("chat")) as server:
        with pytest.raises(UsageError) as refused:
            connect(server.url, EDGE, engine="chat", own=own)
        assert refused.value.setting == "cloud_tokenizer"
        assert server.requests == []
        with pytest.raises(CloudRejected, match=r"\(completions: "):
            connect(server.url, EDGE, own=own)


def test_an_engine_by_ids_stays_one() -> None:
    with closing(ScriptedEngine()) as engine:
        cloud = connect(engine.url, EDGE)
        proof = cloud.vocabulary_check
        with closing(cloud):
            assert isinstance(cloud, EngineCloud)
            assert "same ids" in proof
        engine.mark = 1
        with pytest.raises(VocabularyMismatch, match="name the engine 'llama-server-text'"):
            connect(engine.url, EDGE, engine="llama-server")
        with pytest.raises(VocabularyMismatch, match="as its tokenizer does"):
            connect(engine.url, EDGE, own=ByteTokenizer("<other>"))


@pytest.mark.deep
def test_a_real_engine_of_another_vocabulary_is_asked_by_ids_or_by_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    with ExitStack() as stack:
        edge = stack.enter_context(LlamaModel(bundled("edge"), threads=1)).tokenizer
        url = stack.enter_context(llama_server(OTHER))
        for name, capabilities in (
            ("chat", Capabilities(echoes=True)),
            ("completions", Capabilities()),
        ):
            cloud = connect(url, edge, engine=name, own=own if name == "completions" else None)
            stack.enter_context(closing(cloud))
            assert isinstance(cloud, TextCloud)
            assert cloud.capabilities == capabilities
