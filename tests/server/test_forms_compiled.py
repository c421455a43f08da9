"""A form that takes long to compile keeps nobody waiting who asked for none."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from edgewise.server.app import make_app
from edgewise.server.models import Models
from edgewise.testing.scripted_edge import ScriptedEdge
from tests.server.in_process import CHAT, answering_of
from tests.tool_models import ToolTokenizer, saying

pytest.importorskip("llguidance")

PATIENCE = 60
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORM = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
TOOL = {"name": "a", "input_schema": {"type": "object"}}


class Slow(ToolTokenizer):
    """What a grammar reads of it, its vocabulary, comes when it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def piece(self, token: int) -> bytes:
        if not threading.current_thread().name.startswith("answer") and not self.go_on.is_set():
            self.asked.set()
            assert self.go_on.wait(PATIENCE)
        return super().piece(token)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def client(slow: Slow) -> Iterator[TestClient]:
    """One slot and five places behind it."""
    answering = answering_of(ScriptedEdge(saying('{"n": 3}'), tokenizer=slow), queue=5)
    slow.go_on.clear()
    with TestClient(make_app(Models([answering])), raise_server_exceptions=False) as found:
        yield found
    slow.go_on.set()
    answering.close()


def test_a_form_that_takes_long_keeps_no_other_prompt_waiting(
    client: TestClient, slow: Slow
) -> None:
    def ask(path: str = "chat/completions", **fields: Any) -> Future[Response]:
        return threads.submit(client.post, f"/v1/{path}", json=CHAT | fields)

    with ThreadPoolExecutor(8) as threads:
        try:
            slowly = [ask(response_format=FORM) for _ in range(3)]
            assert slow.asked.wait(PATIENCE)
            assert ask(max_tokens=1).result(PATIENCE).status_code == 200
            counted = ask("messages/count_tokens", tools=[TOOL]).result(PATIENCE)
            assert counted.json()["input_tokens"] > 0
            assert not any(one.done() for one in slowly)
        finally:
            slow.go_on.set()
        for one in slowly:
            assert one.result(PATIENCE).json()["choices"][0]["message"]["content"] == '{"n": 3}'
