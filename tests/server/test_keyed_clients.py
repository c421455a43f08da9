"""Keys of a file at the server: each within its limits, and none learns of another."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from edgewise.cloud.engine import LlamaServer
from edgewise.keys.keys import Keys, add_key, revoke_key
from edgewise.server.callers import Callers
from tests.cli.conftest import Edgewise, edgewise
from tests.gateway.processes import until
from tests.server import in_process
from tests.server.in_process import ASK, CHAT, HeldEdge, data_of
from tests.server.serving import running

__all__ = ["edgewise"]

FREE = {"consults_per_second": 0.0, "ids_per_second": 0.0, "tokens_per_day": 0, "sessions": 0}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture(autouse=True)
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is out of force is noticed at once, not within 0.4 s."""
    monkeypatch.setattr("edgewise.keys.keys.CHECK_SECONDS", 0.0)


def secret_of(keys: Path, name: str, **limits: Any) -> str:
    return add_key(keys, name, **{**FREE, **limits})


@contextmanager
def app(keys: Path, cloud: LlamaServer | None = None, **more: Any) -> Iterator[TestClient]:
    """A server that asks its cloud for every token, for the keys of a file."""
    with in_process.app(cloud, callers=Callers(keys=Keys(keys)), queue=32, **more) as client:
        yield client


def post(client: TestClient, secret: str, body: dict[str, Any] = ASK, **more: Any) -> Any:
    path = "completions" if "prompt" in body else "chat/completions"
    headers = {"Authorization": f"Bearer {secret}"}
    return client.post(f"/v1/{path}", json={**body, "max_tokens": 6, **more}, headers=headers)


def over(reply: Any) -> str:
    """What a key over its limits is told."""
    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) >= 1
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    return error["message"]


def test_a_key_of_the_file_is_needed(keys: Path) -> None:
    secret = secret_of(keys, "ann")
    with app(keys) as client:
        for wrong in ("", "ew-wrong", secret + "x", secret.upper(), "\u00e9"):
            shown = {"Authorization": f"Bearer {wrong}".encode("latin-1")}
            for path in ("/v1/models", "/metrics", "/v1/sent"):
                assert client.get(path, headers=shown).status_code == 401
        assert post(client, "ew-wrong").json()["error"]["code"] == "invalid_api_key"
        assert post(client, secret).status_code == 200
        assert client.get("/health").status_code == 200
        revoke_key(keys, "ann")
        assert post(client, secret).status_code == 401


# Five ids come, six are written; ten seconds of the rate may be saved up.
RATES = {"requests": ({"consults_per_second": 0.1}, 10), "token ids": ({"ids_per_second": 1.0}, 3)}


@pytest.mark.parametrize("what", RATES)
def test_a_key_has_its_rates(keys: Path, what: str) -> None:
    limits, seconds = RATES[what]
    secret, other = secret_of(keys, "ann", **limits), secret_of(keys, "bob")
    with app(keys) as client:
        assert post(client, secret).status_code == 200
        refused = post(client, secret)
        assert what in over(refused)
        assert 1 <= int(refused.headers["retry-after"]) <= seconds
        assert post(client, other).status_code == 200


def test_ids_and_their_text_count_as_requests_of_a_key(keys: Path) -> None:
    bodies: dict[str, Any] = {"tokenize": {"prompt": "a"}, "detokenize": {"tokens": [97]}}
    secrets = {path: secret_of(keys, path, consults_per_second=0.1) for path in bodies}
    with app(keys) as client:
        for path, body in bodies.items():
            shown = {"Authorization": f"Bearer {secrets[path]}"}
            assert client.post(f"/{path}", json=body, headers=shown).status_code == 200
            assert "requests" in over(client.post(f"/{path}", json=body, headers=shown))


def test_a_key_with_a_day_of_cloud_tokens_is_refused(keys: Path, cloud: LlamaServer) -> None:
    secret = secret_of(keys, "ann", tokens_per_day=8)
    with app(keys, cloud) as client:
        assert post(client, secret).status_code == 403


def test_answers_at_a_time(keys: Path) -> None:
    secret, held = secret_of(keys, "one", sessions=1), HeldEdge()
    with app(keys, edge=held) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, client, secret)
        assert held.begun.wait(60)
        assert "answers" in over(post(client, secret))
        held.gate.set()
        assert first.result(60).status_code == 200
        # Places are given back, by what was refused as well.
        assert post(client, secret).status_code == 200


@pytest.mark.deep
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_client_left_counts_until_its_slot_is_free(
    keys: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: who left while prompts were read could hold all slots with one session."""
    secret, held = secret_of(keys, "one", sessions=1), HeldEdge()
    answering = in_process.answering_of(held, queue=32)
    counted = 'requests_total{path="/v1/completions",status="' + ("" if stream else '499"} 1.0')
    shown = {"Content-Type": "application/json", "x-api-key": secret}
    with (
        in_process.at_port(answering, callers=Callers(keys=Keys(keys))) as url,
        httpx2.Client(base_url=url, headers=shown, timeout=60, trust_env=False) as client,
    ):
        leaving = HTTPConnection(url.removeprefix("http://"))
        leaving.request("POST", "/v1/completions", json.dumps(ASK | {"stream": stream}), shown)
        assert held.begun.wait(60)
        leaving.close()
        until(lambda: counted in client.get("/metrics").text, "its end")
        try:
            assert "answers" in over(client.post("/v1/completions", json=ASK, timeout=5))
        finally:
            held.gate.set()
        until(lambda: answering.queue.running == 0, "its slot")
        assert client.post("/v1/completions", json=ASK).status_code == 200
    assert [one for one in caplog.records if one.exc_info] == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_is_revoked_ends_its_answers(keys: Path, stream: bool) -> None:
    secret, held = secret_of(keys, "ann"), HeldEdge()
    with app(keys, edge=held) as client, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(post, client, secret, CHAT, stream=stream, max_tokens=200)
        assert held.begun.wait(60)
        revoke_key(keys, "ann")
        held.gate.set()
        told = reply.result(60)
    if stream:
        assert told.text.strip().endswith("data: [DONE]")
        assert "revoked" in data_of(told.text)[-1]["error"]["message"]
    else:
        assert (told.status_code, told.json()["error"]["code"]) == (401, "invalid_api_key")


def test_no_key_learns_what_another_asked(keys: Path, cloud: LlamaServer) -> None:
    """Neither from what was new to the cloud, nor from its cache, nor from the list of all."""
    ann, bob = secret_of(keys, "ann"), secret_of(keys, "bob")
    # A consult that a busy machine makes late would be missing from what was sent.
    with app(keys, cloud, deadline=60.0) as client:

        def asked(secret: str, **more: Any) -> dict[str, Any]:
            return post(client, secret, CHAT, **more).json()["usage"]["edgewise"]

        first, again, other = asked(ann), asked(ann), asked(bob)
        assert other["sent"] == first["sent"]
        for usage in (first, again, other):
            assert usage["cloud_prompt_cached"] is usage["cloud_prompt_computed"] is None
        told = client.get("/v1/sent", headers={"Authorization": f"Bearer {ann}"})
        assert told.status_code == 403
        # Nor is bob's conversation local because ann's, which begins alike, became so.
        assert asked(ann, edgewise={"cloud": "none"})["cloud_calls"] == 0
        assert asked(ann)["cloud_calls"] == 0
        assert asked(bob)["cloud_calls"] > 0


@pytest.mark.deep
def test_serve_takes_a_file_of_keys(keys: Path, edgewise: Edgewise) -> None:
    """As its operator starts it, with a key that the command made; nothing of it is told."""
    from openai import AuthenticationError, OpenAI, RateLimitError

    made = edgewise("keys", "add", "laptop", "--keys", str(keys), "--consults-per-second", "0.01")
    secret = made.out.strip()
    assert "API key" in made.err
    other = edgewise("keys", "add", "phone", "--keys", str(keys)).out.strip()
    flags = ("--keys", str(keys), "--threads", "1", "--host", "0.0.0.0")
    with running(*flags) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key=secret, max_retries=0)

        def ask(client: Any) -> Any:
            messages: Any = [{"role": "user", "content": "Tell me about copper."}]
            return client.chat.completions.create(model="edgewise", messages=messages, max_tokens=3)

        first, again = ask(client), ask(client.copy(api_key=other))
        assert first.choices[0].message.content == again.choices[0].message.content
        # Else a hit would tell what another key asked.
        assert again.usage.prompt_tokens_details.cached_tokens == 0
        with pytest.raises(RateLimitError, match="Too many requests"):
            ask(client)
        with pytest.raises(AuthenticationError):
            ask(client.copy(api_key="ew-wrong"))
        edgewise("keys", "revoke", "laptop", "--keys", str(keys))
        shown = {"Authorization": f"Bearer {secret}"}
        models = f"{server.url}/v1/models"
        until(
            lambda: httpx2.get(models, headers=shown, trust_env=False).status_code == 401,
            "the revocation",
        )
