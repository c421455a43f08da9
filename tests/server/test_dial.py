"""The dial holds over a server's life, and what the edge answers alone stays on the device."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from edgewise.addresses import bundled
from edgewise.testing import Link
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server
from tests.server.serving import serving


def reply_of(url: str, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": model, "messages": messages, "max_tokens": tokens}
    reply = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    return reply.raise_for_status().json()


def asked(url: str, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """The usage of one answer."""
    return reply_of(url, model, prompt, tokens)["usage"]


def test_one_share_has_one_budget_however_it_is_written() -> None:
    """Another spelling of the same share brings no initial credit of its own."""
    question = pocketqa().questions[0].prompt
    with serving("--threads", "1", "--cloud-share", "0.02", "--router", "constant:1") as url:
        found = [
            asked(url, model, question, 10)
            for _ in range(4)
            for model in ("edgewise", "edgewise@0.02", "edgewise@0.020", "edgewise@0.0200")
        ]
    assert sum(usage["edgewise"]["cloud_tokens"] for usage in found) <= 2 + 0.02 * 160


def test_a_threshold_gives_one_answer_whatever_was_asked_before(url: str) -> None:
    """A share's budget moves its threshold from answer to answer; an id with one stands still."""
    questions = [question.prompt for question in pocketqa().questions[:12]]
    asked(url, "edgewise:t0.2", questions[0], 40)
    first = [replied(url, "edgewise:t0.2", question) for question in questions]
    for question in questions:
        replied(url, "edgewise@0.03", question)
    with ThreadPoolExecutor(2) as pool:
        again = list(pool.map(lambda one: replied(url, "edgewise:t0.2", one), questions))
    assert again == first
    assert any(cloud for _, cloud in first)
    # By a threshold that no score reaches, the edge writes all.
    assert replied(url, "edgewise:t1", questions[0]) == replied(url, "edgewise:edge", questions[0])


def replied(url: str, model: str, prompt: str) -> tuple[str, int]:
    """An answer and how many of its tokens the cloud wrote."""
    found = reply_of(url, model, prompt, 40)
    return found["choices"][0]["message"]["content"], found["usage"]["edgewise"]["cloud_tokens"]


@pytest.mark.deep
@pytest.mark.parametrize("through", ["engine", "gateway"])
def test_edge_only_answers_make_no_connection(through: str) -> None:
    question = pocketqa().questions[0].prompt
    with llama_server(bundled("cloud")) as engine, gateway([engine]) as running:
        far = engine if through == "engine" else running.url
        link = Link("127.0.0.1", int(far.rpartition(":")[2]))
        try:
            with serving("--threads", "1", "--cloud", link.url) as url:
                # The vocabulary was proven at the start; what follows is the answers' own.
                link.cut()
                before = (link.connections, link.up)
                for model in ("edgewise:edge", "edgewise@0"):
                    assert asked(url, model, question, 24)["edgewise"]["cloud_tokens"] == 0
                assert (link.connections, link.up) == before
                asked(url, "edgewise:cloud", question, 4)
                assert link.connections > before[0]
        finally:
            link.close()
