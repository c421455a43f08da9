"""The edge engine `server`: a stream is taken as long as the answer follows it."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from edgewise import Pair
from edgewise.addresses import bundled
from edgewise.cloud.hosts import hosts_of, require_near
from edgewise.edge.base import EdgeOptions, EdgeSession, Floats, Needs, Tokenizer
from edgewise.edge.served import dialect, server
from edgewise.edge.served import session as sessions
from edgewise.edge.served.model import ServedEdge, open_server
from edgewise.edge.served.session import AHEAD
from edgewise.edge.vocabulary import bytes_of, fingerprint
from edgewise.errors import EdgeError, EdgewiseError, ModelError, RouterMismatch, UsageError
from edgewise.routers.card import RouterCard
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cli.test_disk_models import pulled
from tests.contracts import test_edge as contract
from tests.doubles.served_edge import (
    MODEL,
    OLLAMA_CONTEXT,
    PROGRAMS,
    Event,
    Likeliest,
    LlamaEdge,
    llama_edge,
)
from tests.visited import visited

PROMPT = [11, 12, 13]

Opened = Callable[..., ServedEdge]
Begun = Callable[..., EdgeSession]

# `make test` has one by ids and one by text.
EACH = [pytest.param(p, marks=pytest.mark.deep) for p in PROGRAMS[2:]]
EACH += [pytest.param(p) for p in PROGRAMS[:2]]


@pytest.fixture
def served() -> Iterator[LlamaEdge]:
    with llama_edge() as served:
        yield served


@pytest.fixture(params=EACH)
def anyone(request: pytest.FixtureRequest) -> Iterator[LlamaEdge]:
    """A server of each kind."""
    with llama_edge(program=request.param) as served:
        yield served


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens an edge model at a served one, and closes it behind the test."""
    with ExitStack() as stack:

        def open_at(served: LlamaEdge, **options: Any) -> ServedEdge:
            if served.program != "llama-server":
                options.setdefault("tokenizer", "bundled")
            model = open_server(served.url, EdgeOptions(**options))
            stack.callback(model.close)
            served.requests.clear()
            return model

        yield open_at


@pytest.fixture
def begun(opened: Opened) -> Begun:
    """A session of the served model that goes on from the prompt."""

    def begin(served: LlamaEdge, needs: Needs = Needs.NOTHING, **options: Any) -> EdgeSession:
        session = opened(served, **options).session(needs)
        session.open(PROMPT)
        return session

    return begin


def written(session: EdgeSession, n: int) -> list[int]:
    """The session's own greedy tokens."""
    tokens: list[int] = []
    for _ in range(n):
        tokens.append(session.step().proposed)
        session.extend(tokens[-1:])
    return tokens


def greedy(served: LlamaEdge, ids: list[int], n: int) -> list[int]:
    written = list(ids)
    for _ in range(n):
        written.append(served.likeliest(written)[0][0])
    return written[len(ids) :]


def prompts(served: LlamaEdge) -> list[str]:
    """The texts of the prompts that were asked from."""
    tokenizer = served.tokenizer
    return [
        bytes_of(tokenizer, served.ids(request["prompt"])).decode() for request in served.requests
    ]


def text_of(served: LlamaEdge, ids: list[int]) -> str:
    return bytes_of(served.tokenizer, ids).decode()


def test_kept_tokens_and_rollbacks_cost_one_request(begun: Begun, anyone: LlamaEdge) -> None:
    session = begun(anyone, Needs.ENTROPY)
    tokens = greedy(anyone, PROMPT, 20)
    assert written(session, 5) == tokens[:5]
    session.step()
    session.rewind(len(PROMPT) + 2)
    assert session.step().proposed == tokens[2]
    session.extend(tokens[2:5])
    assert session.step().position == len(PROMPT) + 5
    assert prompts(anyone) == [text_of(anyone, PROMPT)]
    assert written(session, 15) == tokens[5:]
    # mlx_lm.server tells candidates in whole replies alone.
    assert len(anyone.requests) == (3 if anyone.program == "mlx_lm.server" else 1)


def test_another_token_costs_its_request_alone(begun: Begun, anyone: LlamaEdge) -> None:
    session, ids = begun(anyone), list(PROMPT)
    asked = [text_of(anyone, ids)]
    ids.append(session.step().proposed)
    looks = len(anyone.keys) - len(anyone.requests)
    session.extend(ids[-1:])
    session.step()
    for token in (999, 998, 997):
        session.extend([token])
        ids.append(token)
        asked.append(text_of(anyone, ids))
        assert session.step().proposed == greedy(anyone, ids, 1)[0]
    assert prompts(anyone) == asked
    assert len(anyone.keys) - len(anyone.requests) == looks
    assert set(anyone.cookies) == {None}


@pytest.mark.parametrize(("looks", "elsewhere"), [(0, 0), (5, 0), (1 << 30, 1)])
def test_the_next_request_waits_for_the_slot_of_the_closed_stream(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, looks: int, elsewhere: int
) -> None:
    """The server would give it another, without the prefix.

    It waits for no other client, and not for ever.
    """
    monkeypatch.setattr(dialect, "LINGER", 0.2 if elsewhere else 60.0)
    with llama_edge(slots=2, lingers=looks) as served:
        session = begun(served)
        session.step()
        session.extend([999])
        assert session.step().proposed == greedy(served, [*PROMPT, 999], 1)[0]
        assert served.elsewhere == elsewhere


def test_the_end_of_an_answer_is_told(begun: Begun, anyone: LlamaEdge) -> None:
    """llama-server and vLLM tell its token; the others only that it ended, or the text's end."""
    if anyone.program in ("llama-server", "mlx_lm.server"):
        pytest.skip("its end token has candidates")
    session = begun(anyone)
    anyone.ends = 3
    assert written(session, 3) == greedy(anyone, PROMPT, 3)
    assert session.step().proposed in anyone.tokenizer.eos_ids


def test_a_step_has_what_is_likeliest(opened: Opened, begun: Begun, anyone: LlamaEdge) -> None:
    served = anyone
    session = begun(served, Needs.ENTROPY | Needs.TEXT)
    step = session.step()
    top = served.likeliest(PROMPT)
    assert step.top(2)[0].tolist() == [top[0][0], top[1][0]]
    assert step.logprob(top[1][0]) == pytest.approx(top[1][1])
    assert step.logprob(5) < top[2][1]
    ids, logprobs = step.top(10)  # as many as a router reads, whatever the server tells
    assert len(set(ids.tolist())) == len(logprobs) == 10
    assert np.all(np.diff(logprobs) <= 0)
    assert len(step.candidates(10)) == 3
    assert step.entropy == pytest.approx(-sum(p * math.log(p) for p in (0.6, 0.3, 0.1)), abs=1e-3)
    assert np.exp(step.logits).sum() == pytest.approx(1.0, abs=1e-3)
    assert list(step.written.ids) == PROMPT
    drawn = {Sampling(temperature=2.0, seed=seed).choose(step) for seed in range(50)}
    assert drawn <= {token for token, _ in top}, "only what the server names"
    assert len(drawn) > 1
    with pytest.raises(UsageError) as caught:
        opened(served).session(Needs.HIDDEN)
    assert caught.value.setting == "router"


def test_a_token_that_the_stream_lacks_is_asked_for(begun: Begun, served: LlamaEdge) -> None:
    """As inside a character of several tokens: the server counts them, and tells the last alone."""
    silent = {"stop": False, "tokens_predicted": 4}
    served.context = 1000
    session = begun(served)
    assert written(session, 2 * AHEAD) == greedy(served, PROMPT, 2 * AHEAD)
    assert len(served.requests) == 2, "kept tokens cost none but the next stream"
    served.spoil = lambda event, number: silent if number == 2 else event
    session = begun(served)
    assert written(session, 6) == greedy(served, PROMPT, 6)
    assert any(not request.get("stream") for request in served.requests)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_stream_that_is_cut_is_asked_for_again(begun: Begun, anyone: LlamaEdge, at: int) -> None:
    """Or, where a whole reply is cut at its first token every time, the error names the server."""
    session = begun(anyone)
    anyone.spoil = lambda event, number: None if number == at else event
    if anyone.program != "mlx_lm.server" and (at > 1 or anyone.program == "llama-server"):
        assert written(session, 8) == greedy(anyone, PROMPT, 8)
    else:
        with pytest.raises(EdgeError) as caught:
            written(session, 8)
        assert anyone.url in caught.value.message


FALSE: dict[str, Callable[[Likeliest], Likeliest]] = {
    "a probability above 1": lambda top: [(top[0][0], 3.0), *top[1:]],
    "no number": lambda top: [(top[0][0], float("nan")), *top[1:]],
    "a probability of nothing": lambda top: [(top[0][0], -1e39)],
    "infinite": lambda top: [(top[0][0], float("inf"))],
    "an id that is none": lambda top: [(10**6, -0.1), *top],
    "a negative id": lambda top: [(-1, -0.1), *top],
    "too many": lambda top: [(300 + i, -8.0) for i in range(3000)],
    "one twice": lambda top: [top[0], top[0]],
    "none": lambda top: [],
}


@pytest.mark.parametrize("false", FALSE)
@pytest.mark.parametrize("at", [0, 3])
def test_candidates_that_are_false_end_no_more_than_the_answer(
    begun: Begun, anyone: LlamaEdge, false: str, at: int
) -> None:
    """By an error that names the server; texts that have no id are left out, and many are many."""
    session = begun(anyone, Needs.ENTROPY)
    taken = written(session, at)
    anyone.lie = FALSE[false]
    session.extend([999])
    said = ""
    try:
        taken += written(session, 2)
    except EdgeError as error:
        said = error.message
    harmless = anyone.program != "llama-server" or false == "too many"
    assert anyone.url in said or (not said and harmless)
    assert all(0 <= token < anyone.size for token in taken)
    session.close()


def test_of_candidates_of_one_text_the_likeliest_is_kept(begun: Begun) -> None:
    with llama_edge(program="Ollama") as ollama:
        top = ollama.likeliest(PROMPT)
        ollama.lie = lambda top: [*top, (top[1][0], -9.0)]
        session = begun(ollama, Needs.ENTROPY)
        step = session.step()
        assert step.top(3)[0].tolist() == [token for token, _ in top]
        assert step.logprob(top[1][0]) == pytest.approx(top[1][1])


@pytest.mark.parametrize("garbage", [b"{", b"[]", b"\xff\xfe", b"x" * (3 << 20), b"[" * 100_000])
def test_garbage_names_the_server(begun: Begun, anyone: LlamaEdge, garbage: bytes) -> None:
    session = begun(anyone)
    anyone.spoil = lambda event, number: garbage if number == 2 else event
    with pytest.raises(EdgeError) as caught:
        written(session, 4)
    assert anyone.url in caught.value.message


@pytest.mark.deep
def test_what_a_server_is_asked_is_recorded_first(anyone: LlamaEdge, tmp_path: Path) -> None:
    """By a pair, also with a model for which a trained router is known."""
    file, tokenizer = tmp_path / "sent.jsonl", {"edge_tokenizer": "bundled"}
    more = tokenizer if anyone.program != "llama-server" else {}
    with Pair(anyone.url, cloud="bundled", sent_file=file, max_tokens=4, **more) as pair:
        anyone.requests.clear()
        file.write_bytes(b"")
        assert pair.ask("Tell me about copper.").tokens
        recorded = [json.loads(line) for line in file.read_text().splitlines()]
        assert [json.loads(one["body"]) for one in recorded] == anyone.requests
        assert {(one["kind"], one["host"]) for one in recorded} == {
            ("edge", urlsplit(anyone.url).netloc)
        }
        file.unlink()
        file.mkdir()
        anyone.requests.clear()
        with pytest.raises(EdgeError):
            pair.ask("Tell me about silver.")
        assert anyone.requests == []


def test_a_router_that_reads_logits_is_refused(opened: Opened, anyone: LlamaEdge) -> None:
    """LogTokU is about their height, and a server tells probabilities alone."""
    edge = opened(anyone)
    names = {"edge_fingerprint": edge.fingerprint(), "hidden_size": edge.hidden_size}
    names |= {"kind": "mlp", "tokenizer_fingerprint": fingerprint(edge.tokenizer)}
    RouterCard(**names, inputs=("top_logprobs", "ranks")).require_fits(edge, Path("router"))
    with pytest.raises(RouterMismatch):
        RouterCard(**names, inputs=("scalars",)).require_fits(edge, Path("router"))


def test_another_vocabulary_is_refused(opened: Opened, anyone: LlamaEdge) -> None:
    """As its ids, or its counts, show."""
    anyone.tokenizer = ByteTokenizer()
    with pytest.raises(ModelError):
        opened(anyone, tokenizer="bundled")


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_server_leaves_open_is_asked_for(opened: Opened, begun: Begun, program: str) -> None:
    """Which of several models, and a tokenizer that is not here."""
    gone = bundled("edge").with_name("elsewhere.gguf")
    with llama_edge(program=program, models=("other", MODEL)) as served:
        if program != "llama-server":
            begun(served, model=MODEL).step()
            assert {request["model"] for request in served.requests} == {MODEL}
            for named in (None, "third"):
                with pytest.raises(UsageError) as unnamed:
                    opened(served, model=named)
                assert unnamed.value.setting == "edge_model"
        served.path, served.models = gone, (MODEL,)
        with pytest.raises(ModelError) as caught:
            Pair(served.url, cloud="none")
        assert caught.value.setting == "edge_tokenizer"


def test_ollamas_tokenizer_is_on_this_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled(tmp_path, "registry.ollama.ai/library/qwen3/0.6b")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    with llama_edge(program="Ollama") as served, Pair(served.url, cloud="none") as pair:
        assert pair.ask("Hello", max_tokens=3).usage.edge_tokens == 3
        with Pair(cloud="none") as here:
            assert pair.edge.fingerprint() == here.edge.fingerprint()


def _without(event: Event, number: int) -> Event:
    """LM Studio's `/v1/completions` has them as null; Ollama's had none before 0.12.11."""
    if "choices" in event:
        return {"choices": [{**event["choices"][0], "logprobs": None}]}
    return {name: value for name, value in event.items() if name != "logprobs"}


def _of_no_token(event: Event, number: int) -> Event:
    if number == 2:
        event["choices"][0]["logprobs"]["tokens"] = []
    return event


@pytest.mark.parametrize(
    ("program", "spoil"),
    [
        *((program, _without) for program in ("LM Studio", "Ollama")),
        *((program, _of_no_token) for program in ("LM Studio", "vLLM")),
    ],
)
def test_a_server_without_logprobs_is_refused(begun: Begun, program: str, spoil: Any) -> None:
    with llama_edge(program=program, spoil=spoil) as served:
        with pytest.raises(EdgeError) as caught:
            written(begun(served), 4)
        assert program in caught.value.message or spoil is _of_no_token


def test_ollama_keeps_the_model_that_others_use(opened: Opened) -> None:
    """It loads it anew where a request wants another context, or another way to end it.

    The context is what it has loaded, by default, or as its Modelfile or a variable has it.
    """
    with llama_edge(program="Ollama") as served:
        model = opened(served)
        session = model.session()
        session.open(PROMPT)
        for token in (999, 998):
            served.load({"options": {}})  # another program's
            session.step()
            session.extend([token])
        session.step()
        assert (served.reloads, model.context) == (0, OLLAMA_CONTEXT - 1)
        for request in served.requests:
            most = len(served.ids(request["prompt"])) + request["options"]["num_predict"]
            assert most <= OLLAMA_CONTEXT
        assert opened(served, context=100).context == 100
        running = [{"name": MODEL, "context_length": 32768}]
        served.reply = lambda path: json.dumps({"models": running}).encode() * (path == "/api/ps")
        assert opened(served).context == 32767
        running.clear()
        assert opened(served).context == OLLAMA_CONTEXT - 1
        assert opened(served, context=8000).context == 8000


def test_what_ollama_adds_is_named_once(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    shown = {"system": "You are a pirate.", "template": "{{ .Prompt }}", "parameters": ""}
    with llama_edge(program="Ollama", shown=shown) as served:
        for _ in range(2):
            opened(served)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "SYSTEM" in said
    assert "PARAMETERS" not in said


@pytest.mark.parametrize("listed", [True, False])
def test_a_context_beyond_the_models_own_is_refused(opened: Opened, listed: bool) -> None:
    """By the list of models, or by what was loaded; nothing is cut without a word."""
    details = {"details": {"context_length": 8192}} if listed else {}
    with llama_edge(program="Ollama", details=details) as served:
        served.most = 8192
        with pytest.raises(UsageError) as caught:
            opened(served, context=16384)
        assert caught.value.setting == "ctx"
        assert len(served.requests) == 0 or not listed


@pytest.mark.parametrize("name", ["q05", "other"])
def test_a_model_that_ollama_asks_elsewhere_is_no_edge(opened: Opened, name: str) -> None:
    """Ollama passes its text on to another host."""
    far = {"remote_host": "https://cloud.example:443", "remote_model": "q05"}
    with llama_edge(program="Ollama", models=("q05:latest",), details=far) as served:
        with pytest.raises(UsageError) as caught:
            opened(served, model=name)
        assert caught.value.setting in ("edge", "edge_model")
        assert served.requests == []


@pytest.mark.deep
@pytest.mark.parametrize("program", ["Ollama", "LM Studio", "mlx_lm.server"])
def test_a_text_that_the_server_reads_otherwise_is_refused(program: str) -> None:
    """What looks like a control token would become one: the answer would be to another prompt."""
    with llama_edge(program=program) as served:
        control = next(text for text in served.tokenizer.special.values() if len(text) > 3)
        with Pair(served.url, cloud="none", edge_tokenizer="bundled") as pair:
            served.requests.clear()
            with pytest.raises(UsageError) as caught:
                pair.ask(f"Explain what {control} means.", max_tokens=3)
            assert control in caught.value.message
            assert caught.value.setting == "edge"
            assert served.requests == []
            assert pair.ask("Explain what it means.", max_tokens=3).tokens
    if program != "mlx_lm.server":
        assert MODEL in str(caught.value.hint)


@pytest.mark.parametrize("program", ["Ollama", "LM Studio", "vLLM"])
def test_a_server_that_ends_without_a_reason_is_lost(program: str) -> None:
    """A reply of no bytes, as where a character is none: the cloud may go on."""
    with llama_edge(program=program) as served:
        settings: Any = {"edge_tokenizer": "bundled", "router": Constant(0.0), "threshold": 0.5}
        with Pair(served.url, cloud="bundled", on_edge_error="cloud", **settings) as pair:
            served.spoil = lambda event, number: None
            answer = pair.ask("Hello", max_tokens=3)
        assert answer.tokens[0].reason == "edge_lost"
        assert "reason" in str(answer.usage.edge_error)


def test_a_character_of_several_tokens_comes_as_one(begun: Begun) -> None:
    """Ollama sends it with the candidates of its last token alone."""
    joined = {"response": "🙂", "logprobs": [{"token": "", "logprob": -0.1, "top_logprobs": []}]}
    with llama_edge(program="Ollama") as served:
        served.spoil = lambda event, number: {**event, **joined} if number == 1 else None
        ids = served.tokenizer.encode("🙂")
        assert written(begun(served), len(ids)) == ids


@pytest.mark.deep
@pytest.mark.parametrize("program", ["Ollama", "mlx_lm.server"])
def test_an_answer_goes_on_behind_any_character(opened: Opened, program: str) -> None:
    """One of several tokens may stand where a reply or a stream ends, as no text can."""
    with llama_edge(program=program, context=1000) as served:
        model, n = opened(served), AHEAD + 20 if program == "Ollama" else 40
        for before in range(8):
            served.story = served.tokenizer.encode("a" + "." * before + "🦩日é")
            with closing(model.session()) as session:
                session.open(served.story[: 1 + before])
                endless = served.story * (n + 1)
                assert written(session, n) == endless[1 + before : 1 + before + n]


def test_a_tie_behind_a_character_of_several_tokens_ends_no_answer(opened: Opened) -> None:
    """mlx_lm.server does not say which of two equals it wrote; its text begins alike before it."""
    with llama_edge(program="mlx_lm.server") as served:
        served.story = served.tokenizer.encode("🦩日.")
        wrote = served.story[-1]
        equal = wrote + 5
        served.lie = lambda top: [*top, (equal, top[0][1])] if top[0][0] == wrote else top
        session = opened(served).session()
        session.open(served.story)
        expected = [*served.story[:-1], equal]
        assert written(session, 40) == expected * (40 // len(expected))


class WithoutAByte:
    """A tokenizer without an id for the byte that begins a 🦩, and without a way around it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def piece(self, token: int) -> bytes:
        return self.tokenizer.piece(token).replace(b"\xf0", b"")


def test_a_text_of_no_ids_leaves_no_gap(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ollama writes behind it does not follow what stands before it."""
    with llama_edge(program="Ollama") as served:
        served.story = served.tokenizer.encode("ab🦩cd")

        def lacking(place: str) -> Any:
            return WithoutAByte(served.tokenizer)

        monkeypatch.setattr("edgewise.edge.served.model.open_tokenizer", lacking)
        session = opened(served).session()
        session.open(served.story[:1])
        before = served.story.index(served.tokenizer.encode("🦩")[0])
        assert written(session, before - 1) == served.story[1:before]
        with pytest.raises(EdgeError) as caught:
            session.step()
    assert served.url in caught.value.message


def test_a_server_that_is_gone_keeps_the_text_so_far() -> None:
    with llama_edge(spoil=lambda event, number: None if number == 5 else event) as served:
        pair = Pair(served.url, cloud="none")
        events = pair.stream("Hello", max_tokens=20)
        first = [next(iter(events)) for _ in range(3)]
    with pytest.raises(EdgeError) as caught:
        list(events)
    assert len(first) == 3
    assert caught.value.setting == "edge"
    pair.close()


@pytest.mark.parametrize(
    ("path", "reply", "status"),
    [
        ("/props", b"[]", 200),
        ("/props", b"<html>", 200),
        ("/props", json.dumps({"model_path": "x", "total_slots": 0}).encode(), 200),
        ("/tokenize", b"{}", 200),
        ("/tokenize", b'{"tokens": [1]}', 200),  # the file has changed
        ("", b"", 503),  # still loading, and not another program
    ],
)
def test_what_is_no_llama_server_is_refused(
    opened: Opened, served: LlamaEdge, path: str, reply: bytes, status: int
) -> None:
    served.status = status
    served.reply = lambda asked: reply if asked == path else None
    with pytest.raises((EdgeError, ModelError)) as caught:
        opened(served)
    assert (served.url if status == 200 else "503") in caught.value.message


@pytest.mark.parametrize(
    "address",
    [
        *("http://192.0.2.1:8080", "https://example.org", "http://box.local:8080"),
        *("http://a:b@127.0.0.1:1", "http://127.0.0.1:1?x", "http://127.0.0.1.example.org"),
        *("http://[::ffff:192.168.0.1]:1", "http://192.169.0.1", "ftp:/127.0.0.1", "http://[::1"),
    ],
)
@pytest.mark.parametrize("hosts", [None, "else.example,10.0.0.1"])
def test_prompts_go_to_no_other_network(address: str, hosts: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        Pair(address, cloud="none", edge_engine="server", edge_hosts=hosts)
    assert caught.value.setting in ("edge", "edge_hosts")


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        *((f"http://{host}:1", None) for host in ("127.9.9.9", "localhost", "10.1.2.3", "[::1]")),
        *((f"https://{host}", None) for host in ("172.31.0.1", "192.168.0.1", "169.254.0.1")),
        *((f"http://{host}", None) for host in ("[fd00::1]", "[fe80::1]")),
        ("https://box.example", "box.example"),
        ("http://box.example:81", "other.example, box.example:81"),
    ],
)
def test_prompts_go_near_or_to_hosts_that_are_allowed(address: str, hosts: str | None) -> None:
    require_near(address, hosts_of(hosts, "edge_hosts"))


def test_a_redirect_is_not_followed() -> None:
    with visited() as (elsewhere, came):
        with llama_edge(status=307, location=elsewhere) as served, pytest.raises(EdgeError):
            Pair(served.url, cloud="none")
        assert came == []


def test_the_key_is_sent_and_a_wrong_one_is_named(served: LlamaEdge) -> None:
    with Pair(served.url, cloud="none", edge_key="secret") as pair:
        pair.ask("Hello", max_tokens=2)
    assert set(served.keys) == {"Bearer secret"}
    served.status = 401
    wrong: dict[str, type[EdgewiseError]] = {"two words": UsageError, "wrong": EdgeError}
    for key, error in wrong.items():
        with pytest.raises(error) as caught:
            Pair(served.url, cloud="none", edge_key=key)
        assert caught.value.setting == "edge_key"


@pytest.mark.parametrize(
    ("program", "filler"),
    [
        *(("llama-server", one) for one in (b"\n", b": keep-alive\n\n", b"x", b"event: ping\n\n")),
        ("Ollama", b'{"response": ""}\n'),
        ("vLLM", b'data: {"choices": []}\n\n'),
    ],
)
def test_an_empty_stream_ends(monkeypatch: pytest.MonkeyPatch, program: str, filler: bytes) -> None:
    """Bytes that are no token do not hold an answer up."""
    with (
        llama_edge(program=program) as served,
        Pair(served.url, cloud="none", edge_tokenizer=tokenizer_of(program)) as pair,
    ):
        monkeypatch.setattr(server, "PATIENCE", 0.2)
        served.filler = filler
        events = pair.stream("Hello", max_tokens=20)
        assert next(events)
        with pytest.raises(EdgeError) as caught:
            list(events)
    assert served.url in caught.value.message


def test_what_comes_before_a_reply_is_no_token(
    monkeypatch: pytest.MonkeyPatch, opened: Opened, served: LlamaEdge
) -> None:
    """However many come, they end; the server can be asked again."""
    model = opened(served)
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    served.early = b"HTTP/1.1 102 Processing\r\n\r\n"
    with closing(model.session()) as session:
        session.open(PROMPT)
        with pytest.raises(EdgeError) as caught:
            session.step()
    assert served.url in caught.value.message
    served.early = b""
    session = model.session()
    session.open(PROMPT)
    assert written(session, 3) == greedy(served, PROMPT, 3)


def test_a_request_that_waits_too_long_ends_no_other_sessions_stream(
    monkeypatch: pytest.MonkeyPatch, opened: Opened, served: LlamaEdge
) -> None:
    served.slots = 2
    go_on, model = threading.Event(), opened(served, slots=2)
    served.spoil = lambda event, number: event if number == 1 or go_on.wait() else None
    session, late = model.session(), model.session()
    for one in (session, late):
        one.open(PROMPT)
    tokens = written(session, 1)
    served.early = b"HTTP/1.1 102 Processing\r\n\r\n"
    with monkeypatch.context() as patched:
        patched.setattr(server, "PATIENCE", 0.2)
        with pytest.raises(EdgeError):
            late.step()
    go_on.set()
    assert tokens + written(session, 3) == greedy(served, PROMPT, 4)
    assert len(served.requests) == 2


@pytest.mark.parametrize(
    ("program", "penalty"), [("Ollama", "repeat_penalty"), ("vLLM", "repetition_penalty")]
)
def test_a_penalty_of_the_servers_own_is_off(begun: Begun, program: str, penalty: str) -> None:
    """Its greedy token would be another than the likeliest."""
    with llama_edge(program=program) as served:
        session = begun(served)
        session.step()
        for request in served.requests:
            assert {**request, **request.get("options", {})}[penalty] == 1.0


@pytest.mark.parametrize("program", ["vLLM", "LM Studio"])
def test_an_event_may_have_no_usage(begun: Begun, program: str) -> None:
    with llama_edge(program=program, spoil=lambda event, number: {**event, "usage": None}) as lent:
        assert written(begun(lent), 3) == greedy(lent, PROMPT, 3)


@pytest.mark.parametrize("value", [10**400, -1])
def test_a_number_that_no_model_has_is_not_believed(opened: Opened, value: int) -> None:
    for name in ("n_params", "n_embd", "n_vocab"):
        with llama_edge(meta={name: value}) as served:
            model = opened(served)
            assert (name, model.parameters, model.hidden_size) == (name, None, 0)


def tokenizer_of(program: str) -> str | None:
    return None if program == "llama-server" else "bundled"


@pytest.mark.deep
def test_a_server_that_is_replaced_is_noticed(begun: Begun, anyone: LlamaEdge) -> None:
    """Before the next answer, and before one goes on, as while the cloud corrects a token: the
    stream before it was closed by the edge itself."""
    session = begun(anyone)
    with Pair(anyone.url, cloud="none", edge_tokenizer=tokenizer_of(anyone.program)) as pair:
        assert pair.ask("Hello", max_tokens=2).tokens
        anyone.requests.clear()
        session.step()
        session.extend([999])
        session.step()
        session.extend([998])
        anyone.replace()
        with pytest.raises(EdgeError) as caught:
            session.step()
        assert anyone.url in caught.value.message
        assert len(anyone.requests) == 2
        with pytest.raises(EdgeError) as caught:
            pair.ask("Hello", max_tokens=2)
    assert caught.value.setting == "edge"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time goes on; a server is asked anew so seldom that no load of the machine outlasts it."""
    monkeypatch.setattr(sessions, "RECHECK", 600.0)

    def go_on(seconds: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + seconds)

    return go_on


@pytest.mark.parametrize("closes", ["HTTP/1.0", "close"])
def test_a_server_that_ends_each_connection_is_asked_who_it_is_now_and_then(
    begun: Begun, later: Callable[[float], None], closes: str
) -> None:
    """Seen: mlx_lm.server looked through its disk's models at each correction."""
    with llama_edge(program="mlx_lm.server", closes=closes) as served:
        session = begun(served)
        session.step()
        asked = len(served.keys) - len(served.requests)
        for token in (999, 998, 997):
            session.extend([token])
            session.step()
        assert len(served.keys) - len(served.requests) == asked
        served.replace()
        later(600.0)
        session.extend([996])
        with pytest.raises(EdgeError):
            session.step()


def test_corrections_put_off_no_such_question(begun: Begun, later: Callable[[float], None]) -> None:
    """Behind a proxy that ends each connection: what the slots do tells of no model."""
    with llama_edge(closes="close", slots=2, lingers=0) as served:
        session = begun(served)
        session.step()
        served.replace()
        later(0.7 * 600.0)
        session.extend([999])
        session.step()
        later(0.7 * 600.0)
        session.extend([998])
        with pytest.raises(EdgeError):
            session.step()


@pytest.mark.parametrize("router", ["margin", "max-prob", "entropy"])
def test_a_router_scores_whatever_a_server_is_sure_of(anyone: LlamaEdge, router: str) -> None:
    """The end of an answer has one candidate; by rounding a logprob may be above 0."""
    anyone.ends = 3
    anyone.lie = lambda top: [(top[0][0], 9e-4)]
    settings: Any = {"edge_tokenizer": tokenizer_of(anyone.program), "router": router}
    with Pair(anyone.url, cloud="bundled", threshold=0.9, **settings) as pair:
        assert pair.ask(PROMPT, max_tokens=6).tokens


@pytest.mark.parametrize("program", ["Ollama", "LM Studio", "mlx_lm.server"])
def test_a_cloud_of_the_same_vocabulary_ends_no_answer_inside_a_character(program: str) -> None:
    """Where the server takes text, the cloud writes whole words."""
    with llama_edge(program=program) as served:
        tokenizer: Any = served.tokenizer
        words = tokenizer.encode(" naïve 🌍 日本 then")

        def script(ids: Sequence[int]) -> Floats:
            logits = np.zeros(tokenizer.size, np.float32)
            logits[words[(len(ids) - len(PROMPT)) % len(words)]] = 20.0
            return logits

        cloud = ScriptedCloud(script, tokenizer=tokenizer)
        settings: Any = {"edge_tokenizer": "bundled", "router": Constant(1.0), "threshold": 0.0}
        with Pair(served.url, cloud=cloud, **settings) as pair:
            answer = pair.ask(PROMPT, max_tokens=30)
    assert len(answer.tokens) == 30
    assert "🌍" in answer.text


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"threads": 2}, "threads"),
        ({"gpu_layers": 1}, "gpu_layers"),
        ({"context": 300}, "ctx"),
        ({"slots": 2}, "edge"),
    ],
)
def test_what_the_server_decides_is_refused(
    opened: Opened, served: LlamaEdge, options: dict[str, Any], setting: str
) -> None:
    with pytest.raises(UsageError) as caught:
        opened(served, **options)
    assert caught.value.setting == setting
    model = opened(served, slots=1)
    with pytest.raises(UsageError) as caught:
        model.session(Needs.TOP, top=1 << 21)
    assert caught.value.setting == "router"
    model.session().close()  # what is refused takes no slot
    for of_a_server in ("edge_model", "edge_tokenizer"):
        with pytest.raises(UsageError) as caught:
            Pair(cloud="none", **{of_a_server: "bundled"})
        assert caught.value.setting == of_a_server


def test_a_proxy_of_the_environment_sees_nothing(
    begun: Begun, served: LlamaEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert written(begun(served), 1) == greedy(served, PROMPT, 1)


class TestServers(contract.TestEdge):
    """Each kind of server keeps the contract; only it knows what it computed."""

    test_nothing_is_computed_twice: Any = None
    test_open_keeps_the_common_prefix: Any = None
    test_views_are_stale_after_the_next_decode: Any = None
    test_a_prefix_is_kept_between_sessions: Any = None

    @pytest.fixture(params=EACH)
    def backend(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[contract.Backend]:
        program = request.param
        # Ids of the bundled vocabulary that are text.
        monkeypatch.setattr(contract, "PROMPT", list(range(60, 60 + len(contract.PROMPT))))
        bytewise = request.node.originalname == "test_any_way_leads_to_the_same_logits"
        if bytewise and program not in ("llama-server", "vLLM"):
            pytest.skip("no text ends inside a character")
        # Each step is a request, and so is each that it is compared with.
        monkeypatch.setattr(contract, "WALK", contract.WALK // 3)
        tokenizer = None if program == "llama-server" else "bundled"
        with llama_edge(program=program, slots=3) as served, ExitStack() as stack:

            def make(**options: Any) -> ServedEdge:
                model = open_server(served.url, EdgeOptions(tokenizer=tokenizer, **options))
                stack.callback(model.close)
                return model

            yield contract.Backend(make)
