"""Drafts verified behind vLLM: a server of its dialect and, where one is installed, vLLM itself."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.bench.frontier.speculative import Speculative
from edgewise.bench.frontier.verifier_vllm import SHORT, Form, VllmVerifier
from edgewise.bench.link import http_target
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.base import COMPLETIONS
from edgewise.errors import (
    CloudProtocolError,
    CloudTimeout,
    CloudUnavailable,
    VocabularyMismatch,
)
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, noise, replying
from tests.cloud.dialects import DialectServer, serving, vllm_routes
from tests.vllm_process import vllm

PROMPT = list(b"sky: ")
TEXT = "blue and wide."
SCRIPT = replying(TEXT, prompt="sky: ")
WRONG = replying("blue Xnd wide.", prompt="sky: ")
FORMS: tuple[Form, ...] = ("auto", "prompts", "prompt_logprobs")
NEAR_TIE = 0.5

Row = dict[str, float]


def likely(ids: Sequence[int]) -> list[tuple[int, float]]:
    """The two likeliest ids with their logprobs, as vLLM tells them."""
    logits = SCRIPT(ids).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum())
    return [(int(i), float(logprobs[i])) for i in np.argsort(-logprobs, kind="stable")[:2]]


def written(index: int, ids: Sequence[int]) -> dict[str, Any]:
    """A choice: one token behind a prompt."""
    names = {f"token_id:{token}": logprob for token, logprob in likely(ids)}
    first = next(iter(names))
    told = {"tokens": [first], "token_logprobs": [names[first]], "top_logprobs": [names]}
    return {"index": index, "logprobs": told, "finish_reason": "length"}


def completions(body: Any) -> tuple[int, Any]:
    """`/v1/completions` of a vLLM whose model writes TEXT."""
    prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
    choices = [written(index, prompt) for index, prompt in enumerate(prompts)]
    cached = 4
    if "prompt_logprobs" in body:
        (prompt,), cached = prompts, 0
        rows: list[dict[str, Any] | None] = [None]
        for end in range(1, len(prompt)):
            row = {str(token): {"logprob": one, "rank": 1} for token, one in likely(prompt[:end])}
            row.setdefault(str(prompt[end]), {"logprob": -30.0, "rank": 99})
            rows.append(row)
        choices[0]["prompt_logprobs"] = rows
    usage = {
        "prompt_tokens": sum(map(len, prompts)),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return 200, {"choices": choices[::-1], "usage": usage}


@pytest.fixture
def server() -> Iterator[DialectServer]:
    routes = vllm_routes(generate=False)
    routes["POST", COMPLETIONS] = completions
    with serving(routes) as made:
        yield made


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_is_what_the_model_writes(
    server: DialectServer, form: Form, pipelined: bool
) -> None:
    with closing(VllmVerifier(server.url, form=form)) as verifier:
        edge = ScriptedEdge(WRONG)
        system = Speculative(edge, verifier, draft=4, pipelined=pipelined, max_tokens=100)
        found = system.ask(PROMPT)
    assert found.ids == (*TEXT.encode(), EOS)
    assert min(found.margins) > 10
    assert found.traffic is not None
    assert all(count > 0 for count in found.traffic)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_request_holds_and_is_billed(server: DialectServer, form: Form) -> None:
    with closing(VllmVerifier(server.url, form=form)) as verifier:
        system = Speculative(
            ScriptedEdge(WRONG), verifier, draft=4, pipelined=False, max_tokens=100
        )
        server.asked.clear()
        found = system.ask(PROMPT)
    bodies = server.bodies(COMPLETIONS)
    drafted = list(b"sky: b"), list(b"lue X")
    assert all((body["max_tokens"], body["temperature"]) == (1, 0) for body in bodies)
    if form == "prompts":
        before, draft = drafted
        assert bodies[1]["prompt"] == [before + draft[:end] for end in range(5)]
        told = [(one.prompt, one.seen, one.written, one.cached) for one in found.requests[1:6]]
        assert told == [(6 + end, 6 + end - (end > 0), 1, None) for end in range(5)]
    else:
        assert bodies[1]["prompt"] == drafted[0] + drafted[1][:4]
        assert [(one.prompt, one.seen, one.cached) for one in found.requests[:2]] == [
            (5, 0, 0),
            (10, 6, 0),
        ]


def test_long_sequences_are_asked_by_prompts(server: DialectServer) -> None:
    with closing(VllmVerifier(server.url)) as verifier:
        session = verifier.open()
        for length in (SHORT, SHORT + 1):
            session.verify([1] * length, [2, 3]).result()
    short, long = server.bodies(COMPLETIONS)
    assert "prompt_logprobs" in short
    assert len(long["prompt"]) == 3


def test_bytes_are_the_links_where_there_is_one(server: DialectServer) -> None:
    link = Link(*http_target(server.url), Quality(round_trip=0.02))
    try:
        with closing(VllmVerifier(link.url, link=link)) as verifier:
            edge = ScriptedEdge(SCRIPT)
            system = Speculative(edge, verifier, draft=4, pipelined=True, max_tokens=100)
            up, down = link.up, link.down
            found = system.ask(PROMPT)
            assert found.traffic == (link.up - up, link.down - down)
        assert found.shown[0] >= 0.02
    finally:
        link.close()


def test_another_vocabulary_is_refused(server: DialectServer) -> None:
    server.routes["POST", "/tokenize"] = lambda body: (200, {"tokens": [1] * 5})
    with (
        closing(VllmVerifier(server.url)) as verifier,
        pytest.raises(VocabularyMismatch, match="other ids"),
    ):
        Speculative(ScriptedEdge(noise()), verifier, draft=4, pipelined=False, max_tokens=9)


def emptied(reply: Any) -> None:
    reply["choices"].clear()


def doubled(reply: Any) -> None:
    reply["choices"].append(reply["choices"][0])


def untold(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["prompt_logprobs"] = None


def shortened(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["prompt_logprobs"].pop()


def as_text(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["tokens"] = ["lue"]


def lonely(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["top_logprobs"] = [{"token_id:98": -0.5}]


def talkative(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"]["tokens"] *= 2


def without_logprobs(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["logprobs"] = None


def strange_keys(reply: Any) -> None:
    for choice in reply["choices"]:
        choice["prompt_logprobs"] = [{"x" * 40: {"logprob": -1.0}}] * 99


BOTH = [emptied, doubled, as_text, lonely, talkative, without_logprobs]
LIES = [(form, lie) for form in FORMS[1:] for lie in BOTH]
LIES += [("prompt_logprobs", lie) for lie in (untold, shortened, strange_keys)]


@pytest.mark.parametrize(("form", "lie"), LIES)
def test_what_is_no_completion_is_a_fault(
    server: DialectServer, form: Form, lie: Callable[[Any], None]
) -> None:
    with closing(VllmVerifier(server.url, form=form)) as verifier:
        edge = ScriptedEdge(SCRIPT)
        system = Speculative(edge, verifier, draft=2, pipelined=False, max_tokens=9)

        def lying(body: Any) -> tuple[int, Any]:
            status, reply = completions(body)
            lie(reply)
            return status, reply

        server.routes["POST", COMPLETIONS] = lying
        with pytest.raises(CloudProtocolError):
            system.ask(PROMPT)
        assert edge.sessions == 0


def test_an_engine_that_is_not_ready_ends_the_answer(server: DialectServer) -> None:
    with closing(VllmVerifier(server.url)) as verifier:
        edge = ScriptedEdge(SCRIPT)
        system = Speculative(edge, verifier, draft=2, pipelined=True, max_tokens=9)
        server.routes["POST", COMPLETIONS] = lambda _: (503, {})
        with pytest.raises(CloudUnavailable, match="not ready"):
            system.ask(PROMPT)


def test_a_deadline_holds(server: DialectServer) -> None:
    with closing(VllmVerifier(server.url, deadline=0.3)) as verifier:
        edge = ScriptedEdge(SCRIPT)
        system = Speculative(edge, verifier, draft=2, pipelined=False, max_tokens=9)
        server.seconds = 0.5
        with pytest.raises(CloudTimeout, match=r"within 0\.3 s"):
            system.ask(PROMPT)
    # Its last reply is written before the server goes.
    while len(server.spans) < len(server.asked):
        time.sleep(0.05)


@pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="see `make test-vllm`")
def test_a_real_vllm_verifies_the_bundled_edge(tmp_path: Path) -> None:
    python = os.environ["VLLM_PYTHON"]
    script = Path(__file__).parents[1] / "vllm_model.py"
    subprocess.run([python, str(script), str(bundled("cloud")), str(tmp_path)], check=True)
    question = pocketqa().questions[0]
    with vllm(Path(python), tmp_path) as url, LlamaModel(bundled("edge"), threads=1) as edge:
        prompt = question_ids(edge.tokenizer, question)
        answers: list[tuple[int, ...]] = []
        for form in FORMS:
            with closing(VllmVerifier(url, form=form, deadline=300)) as verifier:
                for pipelined in (False, True):
                    system = Speculative(
                        edge, verifier, draft=4, pipelined=pipelined, max_tokens=64
                    )
                    assert system.answer(question).outcome.right
                    found = system.ask(prompt)
                    answers.append(found.ids)
                    parted = common_prefix(found.ids, answers[0])
                    whole = len(found.ids) == len(answers[0]) == parted
                    assert whole or found.margins[parted] < NEAR_TIE
