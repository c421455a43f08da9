"""A running answer is cut off from the cloud by whoever asked for it, and by nobody else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from edgewise.errors import CloudUnavailable
from edgewise.testing.scripted_cloud import ScriptedCloud
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


def post(url: str, path: str, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/answers/{path}", headers=headers, timeout=60, trust_env=False)


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


def test_the_edge_goes_on_at_once_and_the_next_answer_has_the_cloud(
    url: str, cloud: HeldCloud
) -> None:
    with running(url) as (answer, chunks):
        assert post(url, f"{answer}/plug").json()["plugged"] is True
        reply = post(url, f"{answer}/unplug")
        assert reply.json() == {"id": answer, "object": "answer.plug", "plugged": False}
        tokens = tokens_of(chunks)
    assert "".join(token["text"] for token in tokens) == TEXT
    assert [token["reason"] for token in tokens[:4]] == [*["unavailable"] * 3, "circuit_open"]
    health = httpx2.get(f"{url}/health", trust_env=False).json()
    assert not health["cloud_paused"]
    cloud.released.set()
    with running(url) as (_, chunks):
        later = tokens_of(chunks)
    assert {token["source"] for token in later} == {"cloud"}


def test_an_answer_that_is_over_has_no_plug(url: str, cloud: HeldCloud) -> None:
    cloud.released.set()
    with running(url) as (answer, chunks):
        list(chunks)
    end = time.monotonic() + 60
    while (reply := post(url, f"{answer}/unplug")).status_code == 200:
        # The place is given back just after the last chunk.
        assert time.monotonic() < end
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "answer_not_found")
    assert post(url, "cmpl-0/plug").status_code == 404


@pytest.mark.parametrize("stranger", [{}, {"Authorization": "Bearer two"}, {"X-Api-Key": "two"}])
def test_nobody_else_touches_it(url: str, cloud: HeldCloud, stranger: dict[str, str]) -> None:
    with running(url, Authorization="Bearer one") as (answer, chunks):
        for path in (f"{answer}/unplug", f"{answer}/plug"):
            assert post(url, path, **stranger).status_code == 404
        assert post(url, f"{answer}/unplug", Authorization="Bearer one").status_code == 200
        assert tokens_of(chunks)


def test_it_is_behind_the_servers_key(cloud: HeldCloud) -> None:
    edge = ScriptedEdge(replying(TEXT, prompt="sky: "))
    with at_port(answering_of(edge, cloud, deadline=600.0), api_key="own") as url:
        assert post(url, "cmpl-0/unplug").status_code == 401
        with running(url, Authorization="Bearer own") as (answer, chunks):
            assert post(url, f"{answer}/unplug", Authorization="Bearer own").status_code == 200
            assert len(tokens_of(chunks)) == len(TEXT) + 1


def test_what_others_know_of_the_cloud_stays_as_it_was(cloud: HeldCloud) -> None:
    """A share's threshold, which all answers have together, does not follow from a cut."""
    edge = ScriptedEdge(replying(TEXT, prompt="sky: "))
    answering = answering_of(edge, cloud, deadline=600.0, threshold=None, cloud_share=0.5)
    with at_port(answering) as url:
        shifts: list[float] = []
        for _ in range(2):
            with running(url) as (answer, chunks):
                post(url, f"{answer}/unplug")
                shifts.append(tokens_of(chunks)[0]["threshold"])
    assert shifts[0] == pytest.approx(shifts[1])


def test_a_cloud_that_is_gone_for_all_pauses_all() -> None:
    gone = ScriptedCloud(
        replying(OTHER, prompt="sky: "), fault=lambda ask: CloudUnavailable("gone")
    )
    with at_port(answering_of(ScriptedEdge(replying(TEXT, prompt="sky: ")), gone)) as url:
        with running(url) as (_, chunks):
            assert tokens_of(chunks)
        assert httpx2.get(f"{url}/health", trust_env=False).json()["cloud_paused"]
