"""`serve` as a process: what stands beside answers, TLS, hostile templates, many clients."""

import os
import signal
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from edgewise.server import replies
from tests import models
from tests.gateway.processes import until
from tests.programs import python
from tests.server.in_process import ASK as ASKED
from tests.server.in_process import HeldEdge, answering_of, at_port
from tests.server.serving import get, post, running, serving
from tests.server_process import answers


def test_browsers_are_told_to_load_nothing_from_elsewhere(url: str) -> None:
    for path in ("/", "/page.js", "/page.css", "/v1/models"):
        headers = get(url + path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert "http" not in get(f"{url}/").text.replace("http-equiv", "")
    assert get(f"{url}/health").json()["vocabulary"].startswith("all ids")


@pytest.mark.deep
def test_other_origins_are_let_in_only_where_told(url: str) -> None:
    ask = {"Origin": "https://my.page", "Access-Control-Request-Method": "POST"}
    allowed = "access-control-allow-origin"
    flags = ("--cors-origin", "https://my.page", "--allow-host", "llm.example.org")
    with serving("--threads", "1", *flags) as open_to_one:
        path = f"{open_to_one}/v1/chat/completions"
        private = {"Access-Control-Request-Private-Network": "true"}
        told = httpx2.options(path, headers=ask | private, trust_env=False)
        assert told.headers[allowed] == "https://my.page"
        assert told.headers["access-control-allow-private-network"] == "true"
        # A proxy that passes the public name on.
        for name, status in (("llm.example.org", 200), ("127.0.0.1", 200), ("evil.example", 400)):
            found = get(f"{open_to_one}/v1/models", headers={"Host": name})
            assert found.status_code == status
        other = httpx2.options(path, headers=ask | {"Origin": "https://x.y"}, trust_env=False)
        assert allowed not in other.headers
    assert allowed not in get(f"{url}/v1/models", headers={"Origin": "https://my.page"}).headers


ASK = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="sk-own", max_retries=0)
messages = [{"role": "user", "content": "Tell me about copper."}]
stream = client.chat.completions.create(
    model="edgewise", messages=messages, max_tokens=8, stream=True
)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream))
"""


@pytest.mark.deep
def test_openais_client_asks_whom_it_was_told_to_trust(tmp_path: Path) -> None:
    """In a process of its own; nothing is served in the clear."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, private_key, signed = (tmp_path / name for name in ("c.pem", "k.pem", "ca.pem"))
    issued.private_key_pem.write_to_path(private_key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    authority.cert_pem.write_to_path(signed)
    flags = ("--certificate", str(certificate), "--private-key", str(private_key))
    trusted = ssl.create_default_context(cafile=str(signed))
    with running(*flags, "--threads", "1", "--api-key", "sk-own", trusted=trusted) as server:
        assert python("-c", ASK, server.url, SSL_CERT_FILE=str(signed)).stdout.strip()
        with pytest.raises(httpx2.TransportError):
            get(server.url.replace("https", "http") + "/health")


# Not known before there is a conversation, so that the template compiles.
BOMB = (
    "{% if 'bomb' in messages[0].content %}{% set n = messages | length * 9 %}"
    "{{ n ** (n ** n) }}{% endif %}"
)


def chat(url: str, content: str) -> httpx2.Response:
    turns = [{"role": "user", "content": content}]
    return post(url, "v1/chat/completions", model="edgewise", messages=turns)


@pytest.mark.deep
def test_a_bomb_ends_in_a_400_and_the_server_goes_on_and_ends(model_folder: Path) -> None:
    """A downloaded model's template; on SIGTERM the server waits for one rendering at most."""
    vocabulary = models.byte_level()
    bomb = replace(vocabulary, template=BOMB + str(vocabulary.template))
    path = models.write_transformer(model_folder / "bomb.gguf", bomb)
    with ThreadPoolExecutor(2) as pool:
        with serving("--edge", str(path), "--threads", "1", "--max-tokens", "2") as url:
            assert chat(url, "Hi").status_code == 200
            bombed = pool.submit(chat, url, "bomb")
            assert get(f"{url}/health").json()["status"] == "ok"
            reply = bombed.result(60)
            assert reply.status_code == 400
            message = reply.json()["error"]["message"]
            assert message.startswith("The model's chat template takes more than 2 s for this")
            assert chat(url, "Hi again").status_code == 200
            last = pool.submit(chat, url, "bomb")
        # The server may have been gone.
        assert isinstance(last.exception(60), httpx2.TransportError | None)


def prompt_tokens(url: str, **body: Any) -> int:
    where = "chat/completions" if "messages" in body else "completions"
    reply = post(url, f"v1/{where}", model="edgewise:edge", max_tokens=1, **body)
    return reply.raise_for_status().json()["usage"]["prompt_tokens"]


def test_what_users_say_is_text_and_raw_prompts_are_read_as_they_are(url: str) -> None:
    """`<|end|>` in a message is several tokens; in a prompt without a template it is one."""
    said = [{"role": "user", "content": "Hi"}]
    inside = [{"role": "user", "content": "Hi<|end|>"}]
    raw = "<|user|>Hi<|end|><|assistant|>"
    assert prompt_tokens(url, messages=said) == prompt_tokens(url, prompt=raw)
    assert prompt_tokens(url, prompt=f"{raw}<|end|>") == prompt_tokens(url, prompt=raw) + 1
    assert prompt_tokens(url, messages=inside) > prompt_tokens(url, messages=said) + 1


@pytest.mark.deep
def test_everyone_gets_their_own_answer_or_is_sent_away() -> None:
    words = ("copper", "iron", "gold", "silver", "tin", "lead", "zinc", "nickel")

    def said(reply: httpx2.Response) -> str:
        assert reply.status_code == 200
        return reply.json()["choices"][0]["message"]["content"]

    def ask(word: str) -> httpx2.Response:
        turns = [{"role": "user", "content": f"Tell me about {word}."}]
        more: dict[str, Any] = {"messages": turns, "max_tokens": 40}
        return post(url, "v1/chat/completions", model="edgewise:edge", **more)

    flags = ("--slots", "2", "--queue", "3", "--threads", "1")
    with serving(*flags) as url, ThreadPoolExecutor(24) as pool:
        alone = {word: said(ask(word)) for word in words}
        found = list(pool.map(lambda word: (word, ask(word)), words * 3))
        # Afterwards everything is free again.
        assert said(ask("copper")) == alone["copper"]
    refused = [reply for _, reply in found if reply.status_code == 429]
    assert 1 <= len(refused) <= 24 - 5
    for reply in refused:
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["code"] == "queue_full"
    assert all(said(reply) == alone[word] for word, reply in found if reply not in refused)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("grace", [60, 0])
def test_an_answer_under_way_is_finished_after_a_signal_or_cut(
    stream: bool, grace: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut where it would take longer than the grace."""
    edge = HeldEdge()
    with ThreadPoolExecutor(1) as pool, at_port(answering_of(edge), grace=grace) as url:
        asked = pool.submit(post, url, "v1/completions", **ASKED, stream=stream)
        assert edge.begun.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        if grace:
            until(lambda: not answers(f"{url}/health"), "the end of new connections")
            # Time for whatever watches for the end of the process.
            time.sleep(1.2)
            edge.gate.set()
            reply = asked.result(60)
            assert reply.status_code == 200
            assert (reply.text.split()[-1] == "[DONE]") if stream else reply.json()["choices"]
        elif stream:
            with pytest.raises(httpx2.RemoteProtocolError):
                asked.result(60)
        else:
            reply = asked.result(60)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        edge.gate.set()
    assert [one for one in caplog.records if one.exc_info] == []


def test_pings_come_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PING_SECONDS", 1)
    edge = HeldEdge()
    answering = answering_of(edge)
    with (
        at_port(answering) as url,
        httpx2.stream(
            "POST", f"{url}/v1/completions", json=ASKED | {"stream": True}, trust_env=False
        ) as reply,
    ):
        lines = reply.iter_lines()
        assert next(lines).startswith(": ping")
        edge.gate.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert (answering.queue.waiting, answering.queue.running) == (0, 0)
