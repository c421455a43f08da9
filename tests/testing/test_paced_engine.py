"""A real llama-server at the pace of a larger one."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from benchmarks.paced_engine import PacedEngine
from edgewise.addresses import bundled
from edgewise_lab.bench.pace import EnginePace
from tests.llama_server_process import llama_server

PACE = EnginePace(first=0.2, token=0.05, read=0.01)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with llama_server(bundled("cloud")) as url:
        yield url


@pytest.fixture
def paced(engine: str) -> Iterator[PacedEngine]:
    with closing(PacedEngine(engine, PACE)) as made:
        yield made


pytestmark = pytest.mark.deep
GREEDY = {"temperature": 0, "ignore_eos": True}


def post(url: str, path: str, body: object) -> Any:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=30)


def completion(url: str, ids: list[int], tokens: int) -> tuple[dict[str, Any], float]:
    """A reply in one piece, and its seconds."""
    begun = time.monotonic()
    body = {"prompt": ids, "n_predict": tokens, "return_tokens": True, **GREEDY}
    with post(url, "/completion", body) as reply:
        return json.loads(reply.read()), time.monotonic() - begun


def fresh(first: int, length: int = 20) -> list[int]:
    """A prompt that begins as no other does."""
    return [first, *range(50, 50 + length - 1)]


def test_a_whole_reply_takes_what_the_pace_says(engine: str, paced: PacedEngine) -> None:
    said, seconds = completion(paced.url, fresh(300), 4)
    assert said["timings"]["prompt_n"] == 20
    expected = PACE.of(4, 20)
    assert expected == pytest.approx(0.2 + 3 * 0.05 + 20 * 0.01)
    assert seconds >= expected
    again, shorter = completion(paced.url, fresh(300), 1)
    assert PACE.of(1, again["timings"]["prompt_n"]) <= shorter < seconds
    assert paced.asked == 2
    direct, quick = completion(engine, fresh(300), 4)
    assert (direct["tokens"], quick < expected) == (said["tokens"], True)


def test_a_stream_leaves_event_by_event(paced: PacedEngine) -> None:
    body = {"prompt": fresh(301), "max_tokens": 5, "stream": True, **GREEDY}
    begun = time.monotonic()
    at: list[float] = []
    with post(paced.url, "/v1/completions", body) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        for line in reply:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                at.append(time.monotonic() - begun)
    assert len(at) == 5
    # Twenty ids that no request began with.
    assert at[0] >= PACE.of(1, 20)
    for number, seconds in enumerate(at, 1):
        assert seconds >= PACE.of(number, 20) - 0.005
