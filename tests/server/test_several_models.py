"""Several models in one server: ids, counts and queues of their own, one process."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from playwright.sync_api import Browser, expect
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.server.models import Models
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from tests.cli.conftest import Edgewise, edgewise
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server.in_process import CHAT, TEXT, answering_of
from tests.server.page_asking import ask
from tests.server.serving import get, serving

__all__ = ["edgewise"]

MESSAGES: Any = [{"role": "user", "content": "Tell me about copper."}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`good` asks its cloud for a fifth of the tokens, `fast` has none."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "good.toml").write_text("cloud-share = 0.2\nrouter = 'constant:1'\nmax-tokens = 20\n")
    (folder / "fast.toml").write_text("cloud = 'none'\nmax-tokens = 3\n")
    flags = [f"--model={name}={folder / name}.toml" for name in ("good", "fast")]
    with serving(*flags, "--slots", "1", "--threads", "1") as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_each_is_asked_by_its_name(client: OpenAI) -> None:
    def answer(model: str, **more: Any) -> Any:
        return client.chat.completions.create(model=model, messages=MESSAGES, **more)

    assert [model.id for model in client.models.list()] == [
        *("good", "good@0.02", "good@0.05", "good@0.1", "good:edge", "good:cloud"),
        *("fast", "fast@0.02", "fast@0.05", "fast@0.1", "fast:edge"),
    ]
    assert client.models.retrieve("good@0.33").id == "good@0.33"
    fast, good = answer("fast"), answer("good")
    assert (fast.model, fast.usage.completion_tokens) == ("fast", 3)
    assert good.usage.edgewise["cloud_tokens"] > 0 == fast.usage.edgewise["cloud_tokens"]
    assert answer("good:edge").usage.edgewise["cloud_calls"] == 0
    assert answer("good:cloud").usage.edgewise["edge_tokens"] == 0
    assert answer("good@0", max_tokens=2).usage.edgewise["cloud_calls"] == 0


@pytest.mark.parametrize("name", ["edgewise", "good@5", "fast:cloud", "good:", ":edge"])
def test_an_unknown_one_is_told_which_there_are(client: OpenAI, name: str) -> None:
    with pytest.raises(NotFoundError) as refused:
        client.chat.completions.create(model=name, messages=MESSAGES)
    assert ("fast:cloud" if name == "fast:cloud" else "good:edge") in str(refused.value)


def test_health_and_metrics_tell_them_apart(url: str, client: OpenAI) -> None:
    found = get(f"{url}/health").json()
    assert [one["model"] for one in found["models"]] == ["good", "fast"]
    assert [bool(one["cloud"]) for one in found["models"]] == [True, False]
    assert found["cloud"] == found["models"][0]["cloud"]

    client.chat.completions.create(model="fast:edge", messages=MESSAGES, max_tokens=3)
    families = list(text_string_to_metric_families(get(f"{url}/metrics").text))
    (tokens,) = [one for one in families if one.name == "edgewise_tokens"]
    assert {"model": "fast", "source": "edge"} in [one.labels for one in tokens.samples]


def test_what_became_local_stays_so_with_another_model(client: OpenAI) -> None:
    """Though the client drops the marks, and the model that was told so has no cloud."""
    question: Any = [{"role": "user", "content": "Tell me about my own iron."}]
    local: Any = {"edgewise": {"cloud": "none"}}
    answer = client.chat.completions.create(model="fast", messages=question, extra_body=local)
    said = {"role": "assistant", "content": answer.choices[0].message.content}
    later: Any = [*question, said, {"role": "user", "content": "And more?"}]
    with pytest.raises(BadRequestError, match="good:cloud"):
        client.chat.completions.create(model="good:cloud", messages=later)
    other = client.chat.completions.create(model="good:cloud", messages=MESSAGES)
    assert other.usage.edgewise["cloud_calls"] > 0


def app(*answerings: Answering) -> TestClient:
    return TestClient(make_app(Models(answerings)), raise_server_exceptions=False)


def test_one_that_is_busy_keeps_no_other_waiting() -> None:
    begun, gate, script = threading.Event(), threading.Event(), noise()

    def held(ids: Sequence[int]) -> Any:
        begun.set()
        assert gate.wait(60)
        return script(ids)

    slow = answering_of(ScriptedEdge(held), queue=0)
    quick = answering_of(ScriptedEdge(replying(TEXT, prompt="sky: ")))
    slow.name, quick.name = "slow", "quick"
    with app(slow, quick) as client, ThreadPoolExecutor(1) as pool:

        def ask(name: str) -> int:
            body = {**CHAT, "model": name, "max_tokens": 3}
            return client.post("/v1/chat/completions", json=body).status_code

        first = pool.submit(ask, "slow")
        assert begun.wait(60)
        assert [ask("quick"), ask("slow"), ask("quick")] == [200, 429, 200]
        gate.set()
        assert first.result(60) == 200
    slow.close()
    quick.close()


REFUSED = {
    "no file": (["work"], {}, "NAME=FILE.toml"),
    "a share in the name": (["a@1=a.toml"], {}, "'a@1'"),
    "one name twice": (["a=a.toml", "a=a.toml"], {"a.toml": ""}, "Two models have the name 'a'"),
    "a file that is not there": (["a=a.toml"], {}, "a.toml cannot be read: No such file"),
    "code": (["a=a.toml"], {"a.toml": "router = 'm:C'"}, "a.toml runs code"),
    "a temperature below zero": (
        ["a=a.toml", "b=b.toml"],
        {"a.toml": "", "b.toml": "temperature = -1"},
        "The model 'b' cannot be served: temperature must be",
    ),
    "a model that is not there": (
        ["a=a.toml", "b=b.toml"],
        {"a.toml": "cloud = 'none'", "b.toml": "edge = './no.gguf'"},
        "The model 'b' cannot be served: There is no file './no.gguf'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_ends_the_start(
    edgewise: Edgewise, tmp_path: Path, name: str
) -> None:
    models, files, told = REFUSED[name]
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    words = [word for model in models for word in ("--model", model)]
    done = edgewise("serve", "--port", "0", "--threads", "1", *words)
    *_, sentence = done.err.splitlines()
    assert done.code == 2
    assert told in sentence
    assert sentence.startswith("edgewise: ")
    assert done.err.count("\n") <= 2, done.err


@pytest.mark.parametrize("given", [("--cloud-key", "k"), ("EDGEWISE_CLOUD_KEY", "k")])
def test_a_key_does_not_go_where_a_models_file_says(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, str]
) -> None:
    if given[0].startswith("--"):
        (tmp_path / "edgewise.toml").write_text("cloud-key = 'k'\n")
    else:
        monkeypatch.setenv(*given)
    engines = [ScriptedEngine(), ScriptedEngine()]
    for name, engine in zip("ab", engines, strict=True):
        (tmp_path / f"{name}.toml").write_text(f"cloud = '{engine.url}'\n")
    done = edgewise("serve", "--port", "0", "--model", "a=a.toml", "--model", "b=b.toml")
    assert done.code == 2
    assert repr(engines[0].url) in done.err
    assert [(engine.looks, engine.strays.total()) for engine in engines] == [(0, 0)] * 2
    for engine in engines:
        engine.close()


def test_the_page_offers_a_choice(browser: Browser, url: str) -> None:
    """Who is asked, and what is said of who runs, follow it; a reload keeps it.

    The last one here: behind a browser no command can be run in this process.
    """
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    page.goto(url)
    expect(page.locator("#models")).to_contain_text("+")
    choice = page.get_by_role("combobox", name="Model")
    choice.select_option("fast")
    expect(page.locator("#models")).to_contain_text("no cloud")
    expect(page.get_by_role("radio")).to_have_count(0)
    page.reload()
    expect(choice).to_have_value("fast")
    ask(page, "Tell me about copper.")
    expect(page.locator(".answer .problem")).to_have_text("")
    assert any('"model":"fast"' in body for body in asked)
    page.close()
