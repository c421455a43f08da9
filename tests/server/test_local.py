"""A conversation that is local: no byte of it crosses the socket, whatever the client does next."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from openai import OpenAI
from starlette.testclient import TestClient

from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.prompts import Message
from edgewise.server.local_messages import LocalMessages
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise.wire.protocol import Ask, Prefetch, from_device
from tests.cloud.dialects import Sglang, Vllm
from tests.cloud.recording import Recorder, ids_of, recording
from tests.doubles.engine_dialects import Dialect
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway
from tests.server.in_process import ASK, CHAT, app
from tests.server.serving import serving

MARK = {"edgewise": {"cloud": "none"}}
HEADER = {"X-Edgewise-Cloud": "none"}
CLOUDS: dict[str, tuple[Any, Dialect]] = {
    "llama-server": (LlamaServer, "llama-server"),
    "vllm": (Vllm, "vllm"),
    "sglang": (Sglang, "sglang"),
    "gateway": (GatewayCloud, "llama-server"),
}


@contextmanager
def watched(name: str) -> Iterator[tuple[TestClient, Recorder]]:
    """A server that asks for every token and speculates, and what crosses to its cloud."""
    made, dialect = CLOUDS[name]
    with ExitStack() as stack:
        engine = ScriptedEngine(dialect=dialect)
        stack.callback(engine.close)
        behind = name == "gateway"
        target = stack.enter_context(gateway([engine.url])).url if behind else engine.url
        recorder = stack.enter_context(recording(target))
        cloud = made(recorder.url)
        stack.callback(cloud.close)
        edge = ScriptedEdge(noise(), context=1 << 14)
        client = stack.enter_context(app(cloud, edge=edge, speculate=4))
        recorder.forget()
        yield client, recorder


def crossed(recorder: Recorder) -> str:
    """The text of every id that was sent, a session's frames put together."""
    found: list[bytes] = []
    held: list[int] = []
    for message in recorder.messages:
        ids = ids_of(message)
        if message[:1] == b"{":
            found.append(message)
        else:
            frame = from_device(message)
            held = [*held[: frame.position], *ids] if isinstance(frame, Ask | Prefetch) else held
            ids = held
        if all(isinstance(one, int) for one in ids):
            found.append(bytes(one for one in ids if one < 256))
    return b"\n".join(found).decode("utf-8", "replace")


def turn(role: str, content: str, *, local: bool = False) -> dict[str, Any]:
    return {"role": role, "content": content, **(MARK if local else {})}


def post(client: TestClient, messages: list[dict[str, Any]], **more: Any) -> Any:
    headers = more.pop("headers", {})
    body = {"model": "edgewise", "messages": messages, "max_tokens": 6, **more}
    return client.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("how", ["message", "field", "header"])
def test_nothing_of_a_local_message_crosses(name: str, how: str) -> None:
    with watched(name) as (client, recorder):
        opening = [turn("user", "open-1")]
        assert post(client, opening).status_code == 200
        opening.append(turn("assistant", "open-2"))
        said = [*opening, turn("user", "hidden-1", local=how == "message")]
        more = {"field": MARK, "header": {"headers": HEADER}}.get(how, {})
        found = post(client, said, **more).json()
        assert found["usage"]["edgewise"]["sent"]["bytes"] == 0
        message = found["choices"][0]["message"]
        assert message["edgewise"] == {"cloud": "none"}
        # As it came, the client's own mark forgotten; then as clients send it that know no fields.
        for answer in (message, turn("assistant", "hidden-2")):
            later = [*opening, turn("user", "hidden-1"), answer, turn("user", "hidden-3")]
            again = post(client, later).json()
            assert again["usage"]["edgewise"]["sent"]["bytes"] == 0
            assert again["choices"][0]["message"]["edgewise"] == {"cloud": "none"}
        # Whoever never came to the local message goes on.
        other = [*opening, turn("user", "open-3")]
        free = post(client, other).json()
        assert free["usage"]["edgewise"]["sent"]["bytes"] > 0
        assert "edgewise" not in free["choices"][0]["message"]
        text = crossed(recorder)
    assert "open-1" in text
    assert "open-3" in text
    assert "hidden" not in text


def test_a_completion_is_local_where_it_says_so() -> None:
    with watched("gateway") as (client, recorder):
        for more in ({"json": {**ASK, **MARK}}, {"json": ASK, "headers": HEADER}):
            found = client.post("/v1/completions", **more).json()
            assert found["usage"]["edgewise"]["sent"]["bytes"] == 0
        ids = {**ASK, "prompt": list(b"sky: "), **MARK}
        assert client.post("/v1/completions", json=ids).status_code == 200
        # It is remembered.
        assert client.post("/v1/completions", json=ASK).status_code == 200
        assert recorder.messages == []
        other = {**ASK, "prompt": "sea: "}
        assert client.post("/v1/completions", json=other).status_code == 200
        assert recorder.messages != []


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"edgewise": {"cloud": "some"}}, "edgewise.cloud"),
        ({"messages": [turn("user", "x") | {"edgewise": {"cloud": "all"}}]}, "messages.0.edgewise"),
        ({"messages": [turn("user", "x") | {"edgewise": {}}]}, "messages.0.edgewise"),
        ({"headers": {"X-Edgewise-Cloud": "auto"}}, "X-Edgewise-Cloud"),
        ({"headers": {"X-Edgewise-Cloud": ""}}, "X-Edgewise-Cloud"),
        ({"model": "edgewise:cloud", **MARK}, "model"),
    ],
)
def test_what_cannot_be_honoured_is_refused(more: dict[str, Any], param: str) -> None:
    with watched("llama-server") as (client, recorder):
        found = post(client, more.pop("messages", CHAT["messages"]), **more)
        assert found.status_code == 400
        assert found.json()["error"]["param"].startswith(param)
        assert recorder.messages == []


def test_openais_client_sends_the_mark_back() -> None:
    with serving("--threads", "1") as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        said: list[Any] = [{"role": "user", "content": "Tell me about copper."}]
        first = client.chat.completions.create(
            model="edgewise", messages=said, max_tokens=4, extra_body=MARK
        )
        assert first.usage
        said += [first.choices[0].message, {"role": "user", "content": "And iron?"}]
        # Another opening, so that the server can know it by the answer's mark alone.
        said[0] = {"role": "user", "content": "Tell me about tin."}
        later = client.chat.completions.create(model="edgewise@1", messages=said, max_tokens=4)
        assert later.usage
        assert later.usage.to_dict()["edgewise"]["cloud_tokens"] == 0  # type: ignore[index]


def test_a_mark_goes_on_to_all_that_follows_and_is_remembered() -> None:
    known = LocalMessages()
    said = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert not any(one.local for one in known.marked(said, local=False))
    assert [one.local for one in known.marked(said, local=True)] == [False, False, True]
    longer = [*said, Message("assistant", "d"), Message("user", "e")]
    assert [one.local for one in known.marked(longer, local=False)] == [False] * 2 + [True] * 3
    assert not any(one.local for one in known.marked(said[:2], local=False))
    # A system message is everybody's: who marks it decides for a conversation of his own alone.
    told = [Message("system", "s", local=True), Message("user", "t")]
    assert all(one.local for one in known.marked(told, local=False))
    plain = [Message("system", "s"), Message("user", "t")]
    assert [one.local for one in known.marked(plain, local=False)] == [False, True]
    assert not any(one.local for one in known.marked([plain[0], said[0]], local=False))
