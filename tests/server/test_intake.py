"""Large requests and slow response formats keep nobody waiting."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from httpx2 import Response

from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise
from tests.gateway.processes import until
from tests.server.in_process import ASK, CHAT, NUMBER, HeldEdge, answering_of, app, at_port, form_of
from tests.server.serving import running
from tests.tool_models import ToolTokenizer, saying

MIB = 1 << 20
LARGEST = 8 * MIB - 200
# Places for eight: a full queue is another reply.
FLAGS = ("--slots", "2", "--queue", "6", "--threads", "1", "--cloud", "none")


def peak(pid: int) -> int:
    """The most memory that a process has had, MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


HUGE = " " * (4 * MIB)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("chat/completions", "messages", [{"role": "user", "content": HUGE}]),
        ("completions", "prompt", HUGE),
    ],
    ids=["chat", "completion"],
)
def test_eight_huge_texts_keep_nobody_waiting(path: str, field: str, value: Any) -> None:
    """More than the context can hold of the longest pieces."""
    body = {"model": "edgewise:edge", "max_tokens": 1, field: value}
    client = httpx2.Client(timeout=60, trust_env=False)
    with running(*FLAGS) as server, client, ThreadPoolExecutor(8) as pool:
        before = peak(server.pid)
        url = f"{server.url}/v1/{path}"
        replies = [pool.submit(client.post, url, json=body) for _ in range(8)]
        assert client.get(f"{server.url}/health").is_success
        for reply in replies:
            error = reply.result().json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", field)
        assert peak(server.pid) - before < 200


def keys(count: int) -> bytes:
    return ",".join(f'"{number:x}":1' for number in range(count)).encode()


def repeated(item: bytes) -> bytes:
    return b",".join([item] * (LARGEST // (len(item) + 1) - 20))


PROMPT, TURN = b'{"model":"edgewise","prompt":', b'{"model":"edgewise","messages":['
WRONG = {
    "a million unknown keys": lambda: (PROMPT + b'"x",' + keys(800_000) + b"}", "0"),
    "and in the options": lambda: (
        PROMPT + b'"x","edgewise":{' + keys(800_000) + b"}}",
        "edgewise.0",
    ),
    "ids that are strings": lambda: (PROMPT + b"[" + repeated(b'""') + b"]}", "prompt"),
    "ids": lambda: (PROMPT + b"[" + repeated(b"1") + b"]}", "prompt"),
    "stop strings": lambda: (PROMPT + b'"x","stop":[' + repeated(b'"a"') + b"]}", "stop"),
    "messages": lambda: (TURN + repeated(b'{"role":"user","content":"a"}') + b"]}", "messages"),
    "messages that are none": lambda: (TURN + repeated(b"1") + b"]}", "messages"),
    "brackets": lambda: (PROMPT + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}", None),
}


@pytest.mark.deep
@pytest.mark.parametrize("which", WRONG)
def test_a_body_of_a_million_faults_names_one(which: str) -> None:
    body, param = WRONG[which]()
    path = "/v1/chat/completions" if b'"messages"' in body[:40] else "/v1/completions"
    with app() as client:
        response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert len(error["message"]) < 300
    assert "\n" not in error["message"]
    assert str(error["param"]).startswith(str(param))


@pytest.mark.parametrize(
    ("path", "field", "one"), [("/tokenize", "prompt", "x"), ("/detokenize", "tokens", [97])]
)
def test_what_is_tokenised_for_nobodys_answer_has_a_bound_and_a_place_in_the_queue(
    path: str, field: str, one: Any
) -> None:
    held = HeldEdge()
    with app(edge=held, queue=0) as client, ThreadPoolExecutor(1) as pool:
        assert client.post(path, json={field: one * MIB}).status_code == 200
        refused = client.post(path, json={field: one * (MIB + 1)})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        answer = pool.submit(client.post, "/v1/completions", json=ASK | {"max_tokens": 1})
        assert held.begun.wait(60)
        assert client.post(path, json={field: one}).json()["error"]["code"] == "queue_full"
        held.gate.set()
        assert answer.result(60).status_code == 200
        assert client.post(path, json={field: one}).status_code == 200


def test_an_answer_waits_for_no_text_that_is_tokenised() -> None:
    """As many as prompts that are read at a time; none of them ends before the answer does."""
    held = Held()
    edge = ScriptedEdge(noise(), tokenizer=held)
    with app(edge=edge, queue=8) as client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.post, "/tokenize", json={"prompt": "x"}) for _ in "12"]
        assert held.begun.acquire(timeout=60)
        answer = client.post("/v1/completions", json=ASK | {"max_tokens": 1})
        assert not any(one.done() for one in waiting)
        held.go_on.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
    assert answer.status_code == 200


class Held(ByteTokenizer):
    """Tokenises a prompt with an x in it when it is told to, and says where that is done."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.threads: set[str] = set()

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        self.threads.add(threading.current_thread().name)
        if "x" in text:
            self.begun.release()
            assert self.go_on.wait(60)
        return super().encode_prompt(text, special=special)


@pytest.mark.deep
def test_who_leaves_while_a_prompt_is_read_gives_the_place_back() -> None:
    """Two wait in a thread each, a third for one of these; slot and queue are free again after."""
    held = Held()
    answering = answering_of(ScriptedEdge(noise(), tokenizer=held), queue=2)
    queue = answering.queue
    with at_port(answering) as url, ThreadPoolExecutor(3) as pool:

        def ask(prompt: str, patience: float) -> httpx2.Response:
            body = ASK | {"prompt": prompt, "max_tokens": 1}
            address = f"{url}/v1/completions"
            return httpx2.post(address, json=body, timeout=patience, trust_env=False)

        leaving = [pool.submit(ask, "x", 2) for _ in range(3)]
        assert held.begun.acquire(timeout=60)
        assert held.begun.acquire(timeout=60)
        until(lambda: queue.waiting == 3, "the third")
        assert ask("y", 60).status_code == 429
        assert all(isinstance(one.exception(60), httpx2.TimeoutException) for one in leaving)
        until(lambda: (queue.running, queue.waiting) == (0, 0), "their places")
        held.go_on.set()
        assert ask("y", 60).status_code == 200
        # Who left before a thread was free asks nothing of it.
        assert not held.begun.acquire(blocking=False)
    assert all(name.startswith("prompt") for name in held.threads)


pytest.importorskip("llguidance")

PATIENCE = 60
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


def test_a_form_that_takes_long_keeps_no_other_prompt_waiting() -> None:
    slow = Slow()
    edge = ScriptedEdge(saying('{"n": 3}'), tokenizer=slow)
    with app(edge=edge, queue=5) as client, ThreadPoolExecutor(8) as threads:

        def ask(path: str = "chat/completions", **fields: Any) -> Future[Response]:
            return threads.submit(client.post, f"/v1/{path}", json=CHAT | fields)

        slow.go_on.clear()
        try:
            slowly = [ask(response_format=form_of(NUMBER)) for _ in range(3)]
            assert slow.asked.wait(PATIENCE)
            assert ask(max_tokens=1).result(PATIENCE).status_code == 200
            counted = ask("messages/count_tokens", tools=[TOOL]).result(PATIENCE)
            assert counted.json()["input_tokens"] > 0
            assert not any(one.done() for one in slowly)
        finally:
            slow.go_on.set()
        for one in slowly:
            assert one.result(PATIENCE).json()["choices"][0]["message"]["content"] == '{"n": 3}'
