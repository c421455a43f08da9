"""What templates and texts from outside cannot do to a server."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import models
from tests.server.serving import serving

# Not known before there is a conversation, so that the template compiles.
BOMB = (
    "{% if 'bomb' in messages[0].content %}{% set n = messages | length * 9 %}"
    "{{ n ** (n ** n) }}{% endif %}"
)


@pytest.fixture(scope="module")
def bombed(model_folder: Path) -> Iterator[str]:
    """Serves a downloaded model whose template is a bomb for some conversations."""
    vocabulary = models.byte_level()
    template = BOMB + str(vocabulary.template)
    path = models.write_transformer(
        model_folder / "bomb.gguf", replace(vocabulary, template=template)
    )
    with serving("--edge", str(path), "--threads", "1", "--max-tokens", "2") as url:
        yield url


def chat(url: str, content: str) -> httpx2.Response:
    body = {"model": "edgewise", "messages": [{"role": "user", "content": content}]}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)


def test_a_bomb_ends_in_a_400_and_the_server_goes_on(bombed: str) -> None:
    assert chat(bombed, "Hi").status_code == 200
    found: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: found.append(chat(bombed, "bomb")))
    thread.start()
    health = httpx2.get(f"{bombed}/health", timeout=30, trust_env=False)
    assert health.json()["status"] == "ok"
    thread.join(60)
    (reply,) = found
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert message.startswith("The model's chat template takes more than 2 s for this conversation")
    assert chat(bombed, "Hi again").status_code == 200


def test_a_server_ends_in_the_middle_of_a_bomb(bombed: str, model_folder: Path) -> None:
    """On SIGTERM; what the signal waits for is at most one rendering."""
    path = model_folder / "bomb.gguf"
    asked = threading.Event()

    def ask(url: str) -> None:
        asked.set()
        try:
            chat(url, "bomb")
        except httpx2.TransportError:
            return  # the server may be gone

    with serving("--edge", str(path), "--threads", "1") as url:
        thread = threading.Thread(target=ask, args=(url,))
        thread.start()
        asked.wait()
    thread.join(60)
    assert not thread.is_alive()


def prompt_tokens(url: str, **body: Any) -> int:
    where = "chat/completions" if "messages" in body else "completions"
    asked = {"model": "edgewise:edge", "max_tokens": 1, **body}
    reply = httpx2.post(f"{url}/v1/{where}", json=asked, timeout=60, trust_env=False)
    return reply.raise_for_status().json()["usage"]["prompt_tokens"]


def test_what_users_say_is_text_and_raw_prompts_are_read_as_they_are(url: str) -> None:
    """`<|end|>` in a message is several tokens; in a prompt without a template it is one."""
    said = [{"role": "user", "content": "Hi"}]
    inside = [{"role": "user", "content": "Hi<|end|>"}]
    raw = "<|user|>Hi<|end|><|assistant|>"
    assert prompt_tokens(url, messages=said) == prompt_tokens(url, prompt=raw)
    assert prompt_tokens(url, prompt=f"{raw}<|end|>") == prompt_tokens(url, prompt=raw) + 1
    assert prompt_tokens(url, messages=inside) > prompt_tokens(url, messages=said) + 1
