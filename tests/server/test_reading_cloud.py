"""A server whose cloud is a chat API that continues nothing: it reads passages."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from edgewise.cloud.connect import connect
from edgewise.pair import Pair
from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.server.callers import Callers
from edgewise.testing.scripted_edge import ScriptedEdge
from tests.doubles.chat_reader import ChatReader
from tests.server.in_process import BODIES, NUMBER, data_of, form_of
from tests.tool_models import ToolTokenizer, saying

pytest.importorskip("llguidance")

TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}


@contextmanager
def served(*, cuts: bool = False) -> Iterator[TestClient]:
    """Its edge model has tools."""
    edge = ScriptedEdge(saying("It is noon."), tokenizer=ToolTokenizer())
    with (
        closing(ChatReader()) as reader,
        closing(connect(reader.url, edge.tokenizer, engine="openai")) as cloud,
        closing(Answering(Pair(edge, cloud=cloud), slots=1, queue=1)) as answering,
        TestClient(make_app(answering, callers=Callers())) as client,
    ):
        reader.cuts = cuts
        yield client


@pytest.mark.parametrize("model", ["edgewise:cloud", "edgewise@1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [{"response_format": form_of(NUMBER)}, {"tools": [TOOL]}])
def test_the_cloud_alone_is_held_to_no_response_format(
    model: str, stream: bool, asked: dict[str, Any]
) -> None:
    """Seen: the edge's answer passed for the cloud's."""
    body = {"model": model, "messages": [{"role": "user", "content": "What time is it?"}]}
    with served() as client:
        refused = client.post("/v1/chat/completions", json={**body, **asked, "stream": stream})
        plain = client.post("/v1/chat/completions", json=body).json()
    assert refused.status_code == 400
    assert "response format" in refused.json()["error"]["message"]
    assert plain["choices"][0]["message"]["content"] == "A whole answer."


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_clouds_own_limit_cut_did_not_fill_the_context(stream: bool) -> None:
    """Seen: clients were told to shorten a conversation of a few words."""
    with served(cuts=True) as client:
        body = BODIES["messages"] | {"model": "edgewise:cloud", "max_tokens": 400}
        found = client.post("/v1/messages", json=body | {"stream": stream})
    ended = data_of(found.text)[-2]["delta"] if stream else found.json()
    assert ended["stop_reason"] == "max_tokens"
