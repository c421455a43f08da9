"""A running answer is cut off from the cloud by whoever asked for it, and by nobody else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from edgewise.errors import CloudUnavailable
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.held_cloud import HeldCloud
from tests.server.at_port import at_port
from tests.server.in_process import TEXT, answering_of

BODY: dict[str, Any] = {
    "model": "edgewise",
    "prompt": "sky: ",
    "stream": True,
    "edgewise": {"provenance": True},
}
OTHER = "The sea is deep."


@contextmanager
def running(url: str, **headers: str) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """An answer that waits for the cloud: its id, and the chunks that follow."""
    with (
        httpx2.Client(timeout=60, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=BODY, headers=headers) as reply,
    ):
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        chunks = (msgspec.json.decode(line[6:]) for line in lines)
        yield next(chunks)["id"], chunks


def unplug(url: str, answer: str, **headers: str) -> httpx2.Response:
    path = f"{url}/v1/answers/{answer}/unplug"
    return httpx2.post(path, headers=headers, timeout=60, trust_env=False)


@pytest.fixture
def cloud() -> HeldCloud:
    return HeldCloud(replying(OTHER, prompt="sky: "))


@pytest.fixture
def url(cloud: HeldCloud) -> Iterator[str]:
    edge = ScriptedEdge(replying(TEXT, prompt="sky: "))
    with at_port(answering_of(edge, cloud, deadline=600.0)) as found:
        yield found


def tokens_of(chunks: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["edgewise"]["token"] for one in chunks if "token" in (one.get("edgewise") or {})]


def give_up(cloud: HeldCloud) -> None:
    """The consult that was under way fails."""
    assert cloud.asked.wait(60)
    cloud.flying[0].set_exception(CloudUnavailable("gone"))


def test_the_edge_goes_on_and_the_next_answer_has_the_cloud(url: str, cloud: HeldCloud) -> None:
    with running(url) as (answer, chunks):
        assert unplug(url, answer).json()["unplugged"] is True
        give_up(cloud)
        tokens = tokens_of(chunks)
    assert "".join(token["text"] for token in tokens) == TEXT
    assert {token["reason"] for token in tokens[1:]} == {"withheld"}
    # It is no fault of the cloud's.
    assert not httpx2.get(f"{url}/health", trust_env=False).json()["cloud_paused"]
    cloud.released.set()
    with running(url) as (_, chunks):
        later = tokens_of(chunks)
    assert {token["source"] for token in later} == {"cloud"}


def test_an_answer_that_is_over_cannot_be_unplugged(url: str, cloud: HeldCloud) -> None:
    cloud.released.set()
    with running(url) as (answer, chunks):
        list(chunks)
    end = time.monotonic() + 60
    while (reply := unplug(url, answer)).status_code == 200:
        # The place is given back just after the last chunk.
        assert time.monotonic() < end
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "answer_not_found")


@pytest.mark.parametrize("stranger", [{}, {"Authorization": "Bearer two"}, {"X-Api-Key": "two"}])
def test_nobody_else_touches_it(url: str, cloud: HeldCloud, stranger: dict[str, str]) -> None:
    with running(url, Authorization="Bearer one") as (answer, chunks):
        assert unplug(url, answer, **stranger).status_code == 404
        assert unplug(url, answer, Authorization="Bearer one").status_code == 200
        give_up(cloud)
        assert tokens_of(chunks)
