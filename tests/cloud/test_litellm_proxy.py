"""A real LiteLLM proxy as the cloud, in front of scripted APIs and a llama-server."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from edgewise import Pair
from edgewise.addresses import bundled
from edgewise.errors import CloudRefused, CloudRejected, CloudUnavailable
from tests.doubles.scripted_text import BUSY, ScriptedText, numbers
from tests.llama_server_process import llama_server
from tests.server_process import free_port, server_process

Behind = tuple[dict[str, ScriptedText], str]
LITELLM = os.environ.get("LITELLM_PYTHON")
KEY = "sk-proxy"
COUNT = "Count in words from one to ten."
SCRIPTED = {
    "large": "chat",
    "gpt-3.5-turbo": "chat",
    "vllm": "vllm-text",
    "mistral": "mistral",
    "expired": "chat",
    "limited": "chat",
}
"""The APIs behind the proxy, by the names under which it serves them."""

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(LITELLM is None, reason="needs LITELLM_PYTHON; see make test-litellm"),
]


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    """The scripted APIs, and a llama-server's address."""
    with ExitStack() as stack:
        apis = {
            name: stack.enter_context(closing(ScriptedText(dialect)))
            for name, dialect in SCRIPTED.items()
        }
        apis["expired"].key = "another"
        apis["gpt-3.5-turbo"].models = ["gpt-3.5-turbo"]
        yield apis, stack.enter_context(llama_server(bundled("cloud")))


@pytest.fixture(scope="module")
def proxy(behind: Behind, tmp_path_factory: Any) -> Iterator[str]:
    apis, real = behind
    serves = {name: (api.models[0], {"api_base": f"{api.url}/v1"}) for name, api in apis.items()}
    serves["real"] = ("cloud", {"api_base": f"{real}/v1"})
    provider = {"api_key": "provider"}
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{model}", **at, **provider}}
        for name, (model, at) in serves.items()
    ]
    settings = {"router_settings": {"num_retries": 0}, "general_settings": {"master_key": KEY}}
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    # JSON is YAML.
    (folder / "config.yaml").write_text(json.dumps({"model_list": models, **settings}))
    url = f"http://127.0.0.1:{port}"
    assert LITELLM is not None
    command = [str(Path(LITELLM).with_name("litellm")), "--config", str(folder / "config.yaml")]
    with server_process(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        f"{url}/health/liveliness",
        log=folder / "log",
        seconds=300,
        # Nothing but the APIs may be asked, not even for a list of prices.
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"},
    ):
        yield url


def pair(
    url: str, model: str, engine: str, *, key: str | None = KEY, tokenizer: str | None = None
) -> Pair:
    """The bundled edge, which asks the cloud for each word."""
    return Pair(
        str(bundled("edge")),
        cloud=url,
        cloud_model=model,
        cloud_engine=engine,
        cloud_key=key,
        cloud_tokenizer=tokenizer,
        router="constant:1",
        threshold=0.5,
        threads=1,
        max_tokens=24,
    )


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("large", "auto"),
        ("large", "chat"),
        # LiteLLM declines the switch for thinking itself for a model that it knows.
        ("gpt-3.5-turbo", "chat"),
        ("vllm", "vllm-text"),
        ("mistral", "mistral"),
    ],
)
def test_the_words_of_the_cloud_are_written(proxy: str, model: str, engine: str) -> None:
    with pair(proxy, model, engine) as opened:
        answer = opened.ask(COUNT)
    assert answer.text == numbers([], "")
    assert answer.usage.cloud_tokens


@pytest.mark.parametrize("engine", ["chat", "completions"])
def test_a_real_engine_behind_it_writes_as_alone(proxy: str, behind: Behind, engine: str) -> None:
    texts: list[str] = []
    for url, model in ((proxy, "real"), (behind[1], "cloud")):
        tokenizer = str(bundled("cloud")) if engine == "completions" else None
        with pair(url, model, engine, tokenizer=tokenizer) as opened:
            answer = opened.ask("Tell me about copper.")
        assert answer.usage.cloud_tokens
        texts.append(answer.text)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("model", "key", "error"),
    [
        ("expired", KEY, CloudRefused),
        ("large", None, CloudRefused),
        # Without a database LiteLLM declines another key as a bad request.
        ("large", "sk-wrong", CloudRejected),
        ("absent", KEY, CloudRejected),
    ],
)
def test_a_wrong_key_or_model_is_refused(
    proxy: str, model: str, key: str | None, error: type
) -> None:
    with pytest.raises(error):
        pair(proxy, model, "chat", key=key)


def test_an_answer_goes_on_beyond_a_limit(proxy: str, behind: Behind) -> None:
    with pair(proxy, "limited", "chat") as opened:
        behind[0]["limited"].fault = lambda number: BUSY
        answer = opened.ask(COUNT)
    assert answer.text
    assert answer.usage.alone
    with pytest.raises(CloudUnavailable):
        pair(proxy, "limited", "chat")
