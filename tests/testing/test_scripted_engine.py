"""The scripted engine over real HTTP: its script, its faults, its counters."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from edgewise.testing.scripted_edge import EOS, ByteTokenizer
from tests.doubles.engine_dialects import Writing
from tests.doubles.scripted_engine import (
    Edited,
    Misbehaviour,
    ScriptedEngine,
    Twisted,
    Wire,
    reply_to,
)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


def ask(engine: ScriptedEngine, prompt: list[int], n: int = 1, timeout: float = 5.0) -> Any:
    """Status, request id and what was said."""
    body = json.dumps({"prompt": prompt, "n_predict": n}).encode()
    request = urllib.request.Request(engine.url + "/completion", body)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.headers["x-request-id"], response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["x-request-id"], error.read()


def test_it_writes_what_follows_from_the_whole_prefix(engine: ScriptedEngine) -> None:
    status, _, said = ask(engine, [1, 2, 3], 3)
    tokens = json.loads(said)["tokens"]
    assert status == 200
    assert tokens[0] == reply_to([1, 2, 3])
    assert tokens[2] == reply_to([1, 2, 3, *tokens[:2]])
    assert tokens != json.loads(ask(engine, [1, 2, 4], 3)[2])["tokens"]


def test_an_end_token_ends_an_answer() -> None:
    engine = ScriptedEngine(script=lambda ids: EOS if len(ids) > 2 else 97)
    reply = json.loads(ask(engine, [1], 10)[2])
    engine.close()
    assert reply["tokens"] == [97, 97, EOS]
    assert reply["stop_type"] == "eos"


def test_consults_and_prefills_are_counted_apart(engine: ScriptedEngine) -> None:
    for n in (1, 0, 2, 0, 0):
        ask(engine, [1], n)
    assert (engine.asked, engine.prefills, engine.running, engine.abandoned) == (2, 3, 0, 0)


def test_every_consult_has_a_number(engine: ScriptedEngine) -> None:
    assert [ask(engine, [1])[1] for _ in range(3)] == ["scripted-0", "scripted-1", "scripted-2"]


@pytest.mark.parametrize(("fault", "status"), [("error", 500), ("busy", 429), ("declined", 400)])
def test_faults_with_a_status(fault: Misbehaviour, status: int) -> None:
    engine = ScriptedEngine(fault=lambda number: fault if number == 1 else None)
    assert [ask(engine, [1])[:2] for _ in range(3)] == [
        (200, "scripted-0"),
        (status, "scripted-1"),
        (200, "scripted-2"),
    ]
    engine.close()


def test_garbage_is_no_json() -> None:
    engine = ScriptedEngine(fault=lambda number: "garbage")
    status, _, said = ask(engine, [1])
    engine.close()
    assert status == 200
    with pytest.raises(ValueError, match=r"utf-8|Expecting"):
        json.loads(said)


@pytest.mark.parametrize("fault", ["hang", "reset"])
def test_faults_without_a_reply(fault: Misbehaviour, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(fault=lambda number: fault)
    with pytest.raises(OSError, match=r"timed out|[Rr]eset|closed"):
        ask(engine, [1], timeout=0.3)
    end = time.monotonic() + 60
    while engine.running and time.monotonic() < end:
        time.sleep(0.01)
    assert engine.running == 0
    assert engine.abandoned == (1 if fault == "hang" else engine.abandoned)
    engine.close()
    assert "Traceback" not in caplog.text


def test_it_tokenises_as_the_byte_tokenizer(engine: ScriptedEngine) -> None:
    body = json.dumps({"content": "naïve"}).encode()
    with urllib.request.urlopen(engine.url + "/tokenize", body) as response:
        assert json.loads(response.read())["tokens"] == ByteTokenizer().encode("naïve")


def test_it_stops_and_comes_back_on_its_port(engine: ScriptedEngine) -> None:
    port = engine.port
    engine.stop()
    assert not engine.listening
    with pytest.raises(OSError, match="refused"):
        ask(engine, [1])
    engine.start()
    assert (engine.listening, engine.port) == (True, port)
    assert ask(engine, [1])[0] == 200


def test_a_consult_takes_as_long_as_told() -> None:
    engine = ScriptedEngine(seconds=0.1)
    begun = time.monotonic()
    ask(engine, [1])
    assert time.monotonic() - begun >= 0.1
    engine.close()


def test_a_reply_says_something_else() -> None:
    def twist(writing: Writing) -> Writing:
        return replace(writing, ids=[1 << 64], cached=-5)

    engine = ScriptedEngine(fault=lambda number: Twisted(twist))
    said = json.loads(ask(engine, [1])[2])
    engine.close()
    assert (said["tokens"], said["timings"]["cache_n"]) == ([1 << 64], -5)
    assert engine.faults == 1


def test_a_reply_with_other_bytes_status_and_headers() -> None:
    fault = Edited(lambda data: data[:5], status=418, headers={"X-A": "b"})
    engine = ScriptedEngine(fault=lambda number: fault if number else None)
    whole, (status, request_id, said) = ask(engine, [1])[2], ask(engine, [1])
    engine.close()
    assert (status, request_id, said) == (418, "scripted-1", whole[:5])
    assert engine.faults == 1


def test_bytes_on_the_wire_with_pauses() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    engine = ScriptedEngine(fault=lambda number: Wire([head, b"a", b"b", b"c"], 0.05))
    begun = time.monotonic()
    with urllib.request.urlopen(engine.url + "/completion", asked([1])) as response:
        assert response.read() == b"abc"
    assert time.monotonic() - begun >= 0.15
    engine.close()


def asked(prompt: list[int]) -> bytes:
    return json.dumps({"prompt": prompt, "n_predict": 1}).encode()


def test_a_wire_without_bytes_is_closed_at_once() -> None:
    engine = ScriptedEngine(fault=lambda number: Wire([]))
    with pytest.raises(OSError, match="closed"):
        ask(engine, [1])
    engine.close()


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/tokenize"])
def test_faults_aside_of_consults(engine: ScriptedEngine, path: str) -> None:
    engine.aside = lambda asked: Edited(lambda data: b"[]") if asked == path else None
    body = b'{"content": "a"}' if path == "/tokenize" else None
    with urllib.request.urlopen(engine.url + path, body) as response:
        assert response.read() == b"[]"
    assert ask(engine, [1])[0] == 200
    assert (engine.faults, engine.looks) == (1, int(path == "/health"))


def test_what_it_does_not_have_is_counted(engine: ScriptedEngine) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(engine.url + "/elsewhere")
    assert engine.strays == {"/elsewhere": 1}


def test_another_engine_comes_back(engine: ScriptedEngine) -> None:
    class Other(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [7]

    engine.stop()
    engine.tokenizer, engine.model = Other(), "another"
    engine.start()
    with urllib.request.urlopen(engine.url + "/tokenize", b'{"prompt": "a"}') as response:
        assert json.loads(response.read())["tokens"] == [7]
    with urllib.request.urlopen(engine.url + "/v1/models") as response:
        assert json.loads(response.read())["data"][0]["id"] == "another"


def test_it_becomes_another_model(engine: ScriptedEngine) -> None:
    def told(path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(urllib.request.Request(engine.url + path, body)) as response:
            return json.load(response)

    text = json.dumps({"content": "Hi"}).encode()
    assert told("/v1/models")["data"] == [{"id": "scripted", "owned_by": "llamacpp"}]
    assert told("/tokenize", text) == {"tokens": [72, 105]}
    engine.model, engine.size, engine.mark = "another", 300, 1
    model = {"id": "another", "owned_by": "llamacpp", "meta": {"n_vocab": 300}}
    assert told("/v1/models")["data"] == [model]
    assert told("/tokenize", text) == {"tokens": [73, 104]}
