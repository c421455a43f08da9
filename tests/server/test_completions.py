"""OpenAI's two older APIs over a real server: shapes, streams, logprobs, who writes, the dial."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.scoring import MOST
from edgewise.loop.policy import INITIAL_BUCKET
from edgewise.testing.link import Link
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import SIZE, ScriptedEdge, noise, replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.asked import HARD
from tests.gateway.running import gateway
from tests.llama_server_process import llama_server
from tests.server.in_process import ASK as IN_PROCESS
from tests.server.in_process import CHAT, TEXT, app, data_of
from tests.server.serving import get, post, serving

PROMPTED = {"model": "edgewise:edge", "prompt": "The word copper names", "max_tokens": 12}


def continued(url: str, **more: Any) -> dict[str, Any]:
    response = post(url, "v1/completions", **PROMPTED | more)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.deep
def test_text_and_its_ids_are_continued_alike_and_streamed(url: str) -> None:
    whole = continued(url, logprobs=2)
    assert whole["object"] == "text_completion"
    with LlamaModel(bundled("edge")) as model:
        ids = model.tokenizer.encode_prompt(str(PROMPTED["prompt"]))
    assert whole["usage"]["prompt_tokens"] == len(ids)
    for prompt in (ids, [ids], [PROMPTED["prompt"]]):
        assert continued(url, prompt=prompt)["choices"][0]["text"] == whole["choices"][0]["text"]
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    found = data_of(post(url, "v1/completions", **PROMPTED | asked, logprobs=2).text)
    choices = [chunk["choices"][0] for chunk in found if chunk["choices"]]
    assert "".join(one["text"] for one in choices) == whole["choices"][0]["text"]
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    tokens = [token for one in choices if one["logprobs"] for token in one["logprobs"]["tokens"]]
    assert tokens == whole["choices"][0]["logprobs"]["tokens"]


SAID = "The word copper names a metal."


def test_the_prompt_comes_back_before_its_continuation(url: str) -> None:
    whole = continued(url, prompt=SAID, echo=True, max_tokens=4)
    alone = continued(url, prompt=SAID, max_tokens=4)
    assert whole["choices"][0]["text"] == SAID + alone["choices"][0]["text"]
    assert whole["choices"][0]["logprobs"] is None
    assert whole["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
    nothing = continued(url, prompt=SAID, echo=True, max_tokens=0)
    assert nothing["choices"][0]["text"] == SAID
    assert nothing["choices"][0]["finish_reason"] == "length"
    assert nothing["usage"]["completion_tokens"] == 0
    # Of a pair as well: it is only text.
    assert continued(url, model="edgewise", echo=True, max_tokens=0)["choices"][0]["text"]


def test_logprobs_of_prompt_and_answer_are_one_list(url: str) -> None:
    asked: dict[str, Any] = {"prompt": SAID, "echo": True, "max_tokens": 3, "logprobs": 2}
    choice = continued(url, **asked)["choices"][0]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    start = choice["text"].index(told["tokens"][-1], told["text_offset"][-1])
    assert told["text_offset"][-1] == start
    # The prompt's are the model's own.
    wanted: list[float] = []
    with LlamaModel(bundled("edge")) as loaded:
        ids = loaded.tokenizer.encode_prompt(SAID)
        with closing(loaded.session()) as session:
            for token, following in pairwise(ids):
                session.extend([token])
                wanted.append(session.step().logprob(following))
    (first, *logprobs), (top, *tops) = told["token_logprobs"], told["top_logprobs"]
    assert first is top is None
    assert logprobs[: len(wanted)] == pytest.approx(wanted, abs=0.05)
    assert all(len(one) <= 2 for one in tops)
    assert len(told["tokens"]) == len(told["text_offset"]) == len(ids) + 3
    # What is likeliest is its own candidate, to the bit: evaluations compare them.
    assert all(one <= max(of.values()) for one, of in zip(logprobs, tops, strict=True))
    assert logprobs[-1] == max(tops[-1].values())
    none = continued(url, **asked | {"logprobs": 0})["choices"][0]["logprobs"]
    assert none["token_logprobs"] == told["token_logprobs"]
    assert not any(none["top_logprobs"])
    by_id = continued(url, **asked | {"prompt": [[*range(3, 9)]]})["choices"][0]["logprobs"]
    assert len(by_id["tokens"]) == 9
    first = data_of(post(url, "v1/completions", **PROMPTED | asked, stream=True).text)[0]
    assert first["choices"][0]["text"] == SAID
    many = len(first["choices"][0]["logprobs"]["tokens"])
    assert first["choices"][0]["logprobs"]["token_logprobs"] == told["token_logprobs"][:many]


def test_long_prompts_are_scored_in_batches() -> None:
    """Of a prompt of many batches every id is scored once, in its place."""
    script = noise(3)
    with app(edge=ScriptedEdge(script)) as client:
        prompt = "x" * (2 * MOST + 5)
        asked = IN_PROCESS | {"model": "edgewise:edge", "prompt": prompt, "max_tokens": 0}
        told = client.post("/v1/completions", json=asked | {"echo": True, "logprobs": 1}).json()
    ids = [*prompt.encode()]
    found = told["choices"][0]["logprobs"]["token_logprobs"]
    for at in range(1, len(ids)):
        logits = script(ids[:at]).astype(float)
        assert found[at] == pytest.approx(
            float(logits[ids[at]] - np.log(np.exp(logits).sum())), abs=1e-4
        )


@pytest.mark.filterwarnings("ignore:invalid value")  # the entropy's
@pytest.mark.parametrize("stream", [False, True])
def test_the_logprob_of_what_cannot_be_is_null(stream: bool) -> None:
    logits = np.zeros(SIZE, np.float32)
    logits[ord("z")] = -np.inf
    asked = {"model": "edgewise:edge", "prompt": "az", "echo": True, "logprobs": 1}
    with app(edge=ScriptedEdge(lambda ids: logits)) as client:
        found = client.post("/v1/completions", json=asked | {"max_tokens": 1, "stream": stream})
    assert found.status_code == 200
    assert '"token_logprobs":[null,null' in found.text


def test_ids_of_a_text_and_back(url: str) -> None:
    def ask(path: str, **body: Any) -> dict[str, Any]:
        return post(url, path, **body).raise_for_status().json()

    info = get(f"{url}/tokenizer_info").json()
    text = f"The word copper{info['eos_token']}"
    found = ask("tokenize", prompt=text, add_special_tokens=False)
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == info["model_max_length"]
    assert ask("detokenize", tokens=found["tokens"])["prompt"] == text
    whole = ask("tokenize", prompt=text)["tokens"]
    assert whole[-found["count"] :] == found["tokens"]
    assert info["chat_template"]
    for wrong in ([1 << 30], [-1]):
        assert post(url, "detokenize", tokens=wrong).status_code == 400
    for refused in ({"prompt": 3}, {"messages": []}):
        assert post(url, "tokenize", **refused).status_code == 400


OTHER = "The sea is blue."


def test_provenance_of_prompts_corrections_and_thresholds() -> None:
    told = {**IN_PROCESS, "edgewise": {"provenance": True}}

    def tokens(model: str) -> list[dict[str, Any]]:
        reply = client.post("/v1/completions", json={**told, "model": model}).json()
        return reply["edgewise"]["tokens"]

    def held(model: str) -> list[tuple[float | None, float | None]]:
        return [(one["score"], one["threshold"]) for one in tokens(model)]

    with app(ScriptedCloud(replying(OTHER, prompt="sky: ")), threshold=0.7) as client:
        assert client.get("/health").json()["threshold"] == 0.7
        # The prompt's ids come once, and only where asked for.
        for path, body in (("completions", IN_PROCESS), ("chat/completions", CHAT)):
            plain = client.post(f"/v1/{path}", json={**body, "stream": True}).text
            assert "prompt_token_ids" not in plain
            asked = {**body, "edgewise": {"provenance": True}}
            streamed = client.post(f"/v1/{path}", json={**asked, "stream": True}).text
            whole = client.post(f"/v1/{path}", json=asked).json()
            assert streamed.count('"prompt_token_ids":[115,107,121,58,32]') == 1
            assert streamed.index("prompt_token_ids") < streamed.index('"token":{"index":0')
            assert whole["edgewise"]["prompt_token_ids"] == list(b"sky: ")
        # A correction is told by what the edge would have written.
        reply = client.post("/v1/completions", json=told).json()
        written = reply["edgewise"]["tokens"]
        assert {one["source"] for one in written} == {"cloud"}
        changed = [one for one in written if one["draft"]["id"] != one["id"]]
        assert len(changed) == reply["usage"]["edgewise"]["correction_tokens"] > 0
        assert all(one["draft"]["text"] == one["edge"][0]["token"] for one in changed)
        # The threshold stands beside the score; for a share the controller moves it.
        assert set(held("edgewise")) == {(1.0, 0.7)}
        assert {threshold for _, threshold in held("edgewise:edge")} == {None}
        assert {threshold for _, threshold in held("edgewise@0")} == {None}
        steered = [threshold for score, threshold in held("edgewise@0.2") if score]
        assert len({round(one or 0, 6) for one in steered}) > 3
        # Where a consult brings several tokens, those behind the first had no score.
        assert held("edgewise:cloud")[:2] == [(1.0, 0.0), (None, None)]


# Alone the edge always says the same; a pair whose share is steered depends on when completions
# come.
ASK = {"model": "edgewise:edge", "messages": [{"role": "user", "content": "Tell me about copper."}]}
ASK_HARD = [{"role": "user", "content": HARD}]


def answer(url: str, **more: Any) -> dict[str, Any]:
    response = post(url, "v1/chat/completions", **ASK | more)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(url: str, **more: Any) -> list[dict[str, Any]]:
    """All chunks of a stream; the end is checked here."""
    response = post(url, "v1/chat/completions", **ASK | more, stream=True)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.strip().endswith("data: [DONE]")
    return data_of(response.text)


def said(found: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content", "") for c in found if c["choices"])


def test_a_stream_says_the_same_as_a_whole_answer(url: str) -> None:
    whole = answer(url, seed=7, temperature=0.8)
    found = chunks(url, seed=7, temperature=0.8, stream_options={"include_usage": True})
    assert said(found) == whole["choices"][0]["message"]["content"]
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *_, last, usage = found
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in found}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in found)
    # Without `include_usage` it has no usage.
    assert all("usage" not in chunk for chunk in chunks(url))


def test_an_answer_ends_at_its_limit_and_before_a_stop_string(url: str) -> None:
    # Beside what OpenAI's client sends unasked.
    zero = dict.fromkeys(("frequency_penalty", "presence_penalty"), 0)
    more: dict[str, Any] = {"n": 1, "tools": [], "logit_bias": {}, "user": "somebody", **zero}
    more |= {"response_format": {"type": "text"}, "temperature": None}
    for field in ("max_tokens", "max_completion_tokens"):
        found = answer(url, **{field: 3}, **more)
        assert found["usage"]["completion_tokens"] == 3
        assert found["choices"][0]["finish_reason"] == "length"
    whole = answer(url)["choices"][0]["message"]["content"]
    stop = whole[10:14]
    for form in (stop, [stop, "never said"]):
        found = answer(url, stop=form)
        assert found["choices"][0]["message"]["content"] == whole.partition(stop)[0]
        assert found["choices"][0]["finish_reason"] == "stop"
        assert said(chunks(url, stop=form)) == whole.partition(stop)[0]


def test_a_seed_repeats_a_drawn_answer(url: str) -> None:
    def drawn(**more: Any) -> str:
        return answer(url, temperature=1.5, **more)["choices"][0]["message"]["content"]

    assert drawn(seed=3) == drawn(seed=3) != drawn(seed=-4)
    # Without one every draw is another.
    assert len({drawn() for _ in range(4)}) > 1


@pytest.mark.parametrize("model", ["edgewise:edge", "edgewise:cloud"])
def test_logprobs_have_bytes_and_candidates(url: str, model: str) -> None:
    found = answer(url, model=model, logprobs=True, top_logprobs=3, max_tokens=12)
    content = found["choices"][0]["logprobs"]["content"]
    assert content
    for one in content:
        assert one["logprob"] <= 0
        assert bytes(one["bytes"]).decode("utf-8", "replace") == one["token"]
        assert len(one["top_logprobs"]) == 3
        probabilities = [top["logprob"] for top in one["top_logprobs"]]
        assert probabilities == sorted(probabilities, reverse=True)
        # Greedy: the token is the likeliest of who wrote it.
        assert one["top_logprobs"][0]["token"] == one["token"]
    streamed = chunks(url, model=model, logprobs=True, top_logprobs=3, max_tokens=12)
    told = [c["choices"][0]["logprobs"] for c in streamed]
    assert [one for part in told if part for one in part["content"]] == content


def test_model_ids_choose_who_writes(url: str) -> None:
    listed = [model["id"] for model in get(f"{url}/v1/models").json()["data"]]
    shares = [f"edgewise@{share}" for share in (0.02, 0.05, 0.1)]
    assert listed == ["edgewise", *shares, "edgewise:edge", "edgewise:cloud"]
    assert get(f"{url}/v1/models/edgewise@0.33").json()["id"] == "edgewise@0.33"
    assert get(f"{url}/v1/models/gpt").status_code == 404
    edge = answer(url, model="edgewise:edge")["usage"]["edgewise"]
    assert (edge["cloud_tokens"], edge["cloud_calls"]) == (0, 0)
    assert (edge["cloud_prompt_computed"], edge["cloud_prompt_cached"]) == (0, 0)
    fresh = [{"role": "user", "content": "Tell me about a word that nobody asked for yet."}]
    cloud = answer(url, model="edgewise:cloud", messages=fresh)["usage"]["edgewise"]
    assert cloud["edge_tokens"] == 0
    assert cloud["cloud_calls"] < cloud["cloud_tokens"]
    assert cloud["cloud_prompt_computed"] > 0
    assert answer(url, model="edgewise@0")["usage"]["edgewise"]["cloud_tokens"] == 0
    all_of_it = answer(url, model="edgewise@1")["usage"]["edgewise"]
    assert all_of_it["edge_tokens"] == 0
    some = answer(url, model="edgewise@0.2", max_tokens=64)["usage"]["edgewise"]
    # How much depends on what others left of the share's budget: not all of it.
    assert some["cloud_share"] < 1


@pytest.mark.parametrize(
    ("model", "reason"), [("edgewise:t0.02", "critical"), ("edgewise@0.2", "corrected")]
)
def test_provenance_is_told_on_demand(url: str, model: str, reason: str) -> None:
    found = answer(url, model=model, messages=ASK_HARD, edgewise={"provenance": True})
    tokens = found["edgewise"]["tokens"]
    assert len(tokens) == found["usage"]["completion_tokens"]
    assert {token["source"] for token in tokens} == {"edge", "cloud"}
    by_cloud = [token for token in tokens if token["source"] == "cloud"]
    assert len(by_cloud) == found["usage"]["edgewise"]["cloud_tokens"]
    for token in by_cloud:
        assert token["reason"] == reason
        told, untold = ("score", "ratio") if reason == "critical" else ("ratio", "score")
        assert 0 <= token[told] <= 1
        assert token[untold] is None
        assert token["edge"]
        assert token["cloud"]
    assert found["edgewise"]["timing"]["ttft"] > 0
    streamed = chunks(url, model=model, messages=ASK_HARD, edgewise={"provenance": True})
    own = [chunk["edgewise"] for chunk in streamed if "edgewise" in chunk]
    told = [one["token"] for one in own if "token" in one]
    assert [token["index"] for token in told] == list(range(len(told)))
    assert {token["source"] for token in told} == {"edge", "cloud"}


def test_guesses_are_told_while_a_consult_flies(linked: tuple[str, Link]) -> None:
    asked: dict[str, Any] = {"messages": ASK_HARD, "edgewise": {"pending": True}}
    found = chunks(linked[0], model="edgewise@0.2", **asked)
    own = [chunk["edgewise"] for chunk in found if "edgewise" in chunk]
    assert any("pending" in one for one in own)
    assert not any("token" in one for one in own)


def test_a_second_turn_does_not_read_the_first_again(url: str) -> None:
    history = [{"role": "user", "content": "Tell me about copper. " * 8}]
    first = answer(url, messages=history, max_tokens=24)
    said_first = first["choices"][0]["message"]["content"]
    history.append({"role": "assistant", "content": said_first})
    history.append({"role": "user", "content": "And iron?"})
    second = answer(url, messages=history, max_tokens=8)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 0.9 * first["usage"]["prompt_tokens"]


def asked(url: str, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return answer(url, model=model, messages=messages, max_tokens=tokens)


def test_one_share_has_one_budget_however_it_is_written() -> None:
    """Another spelling of the same share brings no initial credit of its own."""
    cloud = ScriptedCloud(replying(TEXT, prompt="sky: "))
    with app(cloud, threshold=None, cloud_share=0.02) as client:
        found = [
            client.post("/v1/completions", json=IN_PROCESS | {"model": model}).json()
            for _ in range(4)
            for model in ("edgewise", "edgewise@0.02", "edgewise@0.020", "edgewise@0.0200")
        ]
    written = [one["usage"]["completion_tokens"] for one in found]
    assert sum(written) == 16 * (len(TEXT) + 1)
    by_cloud = sum(one["usage"]["edgewise"]["cloud_tokens"] for one in found)
    assert 0 < by_cloud <= INITIAL_BUCKET + 0.02 * sum(written)


@pytest.mark.deep
def test_a_threshold_gives_one_answer_whatever_was_asked_before(url: str) -> None:
    """A share's budget moves its threshold from answer to answer; an id with one stands still."""
    questions = [question.prompt for question in pocketqa().questions[:5]]
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


def test_a_share_keeps_verification_and_a_threshold_has_the_router(url: str) -> None:
    question, said = pocketqa().questions[0].prompt, {"edgewise": {"provenance": True}}
    models = ("edgewise", "edgewise@0.2", "edgewise:t0.2", "edgewise:edge", "edgewise:cloud")
    told: dict[str, Any] = {"prompt": question, "max_tokens": 24, **said}
    found = {model: continued(url, model=model, **told) for model in models}
    usage = {model: reply["usage"]["edgewise"] for model, reply in found.items()}
    assert [usage[model]["verified_tokens"] > 0 for model in models] == [True] * 2 + [False] * 3
    for model in models[:2]:
        ratios = [one["ratio"] for one in found[model]["edgewise"]["tokens"]]
        assert None not in ratios
        lowest, at = usage[model]["lowest_ratio"], usage[model]["lowest_at"]
        assert lowest == ratios[at]
    assert usage["edgewise:edge"]["lowest_ratio"] is None
    health = get(f"{url}/health").json()
    assert (health["verify"], health["cloud_share"], health["threshold"]) == ("on", 0.1, None)


def replied(url: str, model: str, prompt: str) -> tuple[str, int]:
    """An answer and how many of its tokens the cloud wrote."""
    found = asked(url, model, prompt, 40)
    return found["choices"][0]["message"]["content"], found["usage"]["edgewise"]["cloud_tokens"]


@pytest.mark.deep
@pytest.mark.parametrize("through", ["engine", "gateway"])
def test_edge_only_answers_make_no_connection(through: str) -> None:
    question = pocketqa().questions[0].prompt
    with llama_server(bundled("cloud")) as engine, gateway([engine]) as running:
        far = engine if through == "engine" else running.url
        with (
            closing(Link("127.0.0.1", int(far.rpartition(":")[2]))) as link,
            serving("--threads", "1", "--cloud", link.url) as url,
        ):
            # The vocabulary was proven at the start; what follows is the answers' own.
            link.cut()
            before = (link.connections, link.up)
            for model in ("edgewise:edge", "edgewise@0"):
                usage = asked(url, model, question, 24)["usage"]
                assert usage["edgewise"]["cloud_tokens"] == 0
            assert (link.connections, link.up) == before
            asked(url, "edgewise:cloud", question, 4)
            assert link.connections > before[0]
