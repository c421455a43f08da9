"""`Pair`, the library's front door, on the bundled pair and on models that others hold."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise import (
    Answer,
    EdgewiseError,
    LlamaModel,
    LocalCloud,
    MaxProb,
    Message,
    Pair,
    Policy,
    Prompt,
    Token,
)
from edgewise.addresses import bundled
from edgewise.cloud.adapter.ids import Adapter
from edgewise.edge.base import EdgeAbilities
from edgewise.errors import CloudUnavailable, ModelError, UsageError
from edgewise.loop.decoder import collect
from edgewise.loop.policy import INITIAL_BUCKET
from edgewise.pair import open_models
from edgewise.prompts import prompt_ids
from edgewise.routers.untrained import Constant
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying
from tests.doubles.chat_reader import ChatReader
from tests.models import byte_level, write_transformer

QUESTION = "Tell me about copper."
NOWHERE = "http://127.0.0.1:9"


def test_a_cloud_that_is_not_there_is_told_of_first(
    bpe_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The edge model does not write for its thresholds before."""
    with pytest.raises(CloudUnavailable):
        Pair(bpe_path, cloud=NOWHERE, router="entropy", cloud_share=0.05)
    assert "prompts" not in caplog.text
    with Pair(bpe_path, cloud=bpe_path, router="entropy", cloud_share=0.05) as pair:
        assert pair.starts


@pytest.fixture(scope="module")
def alone() -> Iterator[Pair]:
    """The bundled edge model without a cloud: its answers do not depend on one another."""
    with Pair(cloud="none", threads=1) as pair:
        yield pair


def test_the_shortest_form() -> None:
    with Pair() as pair:
        answer = pair.ask(QUESTION)
        assert isinstance(answer, Answer)
        assert "copper" in answer.text
        assert (pair.policy.verify, pair.policy.cloud_share) == ("on", 0.10)
        assert answer.usage.verified_tokens > 0
        assert pair.card is not None


def test_text_messages_and_ids_are_the_same_question(alone: Pair) -> None:
    message = Message("user", QUESTION)
    ids = prompt_ids(alone.edge.tokenizer, [message])
    whole = alone.ask(QUESTION)
    forms: list[Any] = [
        *([message], (message,), [{"role": "user", "content": QUESTION}], alone.prompt(QUESTION)),
        *(ids, tuple(ids), np.array(ids, np.int32), Prompt(tuple(ids))),
    ]
    assert [alone.ask(form).text for form in forms] == [whole.text] * len(forms)
    assert alone.prompt(QUESTION) == Prompt(tuple(ids), (message,))
    assert alone.prompt(ids) == Prompt(tuple(ids), None)


def test_candidates_and_drafts_for_those_who_ask() -> None:
    with Pair(router="constant:1", threshold=0.5, threads=1) as pair:
        with pair.stream(QUESTION, max_tokens=6, pending=True) as stream:
            assert {"Token", "Consult"} <= {type(event).__name__ for event in stream}
        pair.policy = Policy(cloud_share=0.0)
        with pair.stream(QUESTION, max_tokens=2, candidates=True) as stream:
            assert all(event.edge for event in stream if isinstance(event, Token))


def test_one_answer_may_differ_from_its_pair(alone: Pair) -> None:
    whole = alone.ask(QUESTION)
    ids = [token.id for token in whole.tokens]
    assert [token.id for token in alone.ask(QUESTION, max_tokens=2).tokens] == ids[:2]
    stop = whole.text[5:8]
    for given in (stop, [stop, "never said"]):
        assert alone.ask(QUESTION, stop=given).text == whole.text.partition(stop)[0]
    drawn = {alone.ask(QUESTION, temperature=2.0, seed=seed).text for seed in range(4)}
    assert len(drawn) > 1
    filters: dict[str, Any] = {"top_k": 50, "top_p": 0.99, "min_p": 0.001}
    again = [alone.ask(QUESTION, temperature=2.0, seed=1, **filters).text for _ in range(2)]
    assert again[0] == again[1]
    assert alone.ask(QUESTION, temperature=2.0, seed=1, top_k=1).text == whole.text
    assert alone.ask(QUESTION).text == whole.text


def test_a_system_message_stands_first_unless_the_conversation_brings_one() -> None:
    with Pair(cloud="none", system="Be brief.", threads=1) as pair:
        for asked in (QUESTION, [Message("user", QUESTION)]):
            messages = pair.prompt(asked).messages
            assert messages == (Message("system", "Be brief."), Message("user", QUESTION))
        own = [Message("system", "Be long."), Message("user", QUESTION)]
        assert pair.prompt(own).messages == tuple(own)
        ids = pair.edge.tokenizer.encode(QUESTION)
        assert pair.prompt(ids).ids == tuple(ids)


def cases(table: dict[str, list[Any]]) -> pytest.MarkDecorator:
    """Each of what is `given`, with what an error says of it."""
    rows = [(one, said) for said, every in table.items() for one in every]
    return pytest.mark.parametrize(("given", "said"), rows, ids=lambda value: str(value)[:30])


@cases(
    {
        "prompt is empty": ["", " \n", [], Prompt(())],
        "shorten the prompt": ["copper " * 5000],
        "UTF-8": ["caf\udce9", [Message("user", "\udce9")]],
        "322639": ["a" * (4 << 20)],
        "1048576": [[1, 1 << 20]],
        "4096": [Prompt((1, 4096))],
        "-1": [[1, -1]],
        "float": [[1.5]],
        "NoneType": [[None]],
        "token ids": [[1, Message("user", "x")]],
        "robot": [[{"role": "robot", "content": "x"}]],
        "role": [[{"role": "user"}]],
        "`int`": [[{"role": "user", "content": 3}]],
        "`name`": [[{"role": "user", "content": "x", "name": "y"}]],
    }
)
def test_what_is_no_prompt(alone: Pair, given: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        alone.stream(given)
    assert said in str(caught.value)
    assert alone.ask(QUESTION, max_tokens=1).tokens


@cases(
    {
        "max-tokens": [{"max_tokens": 0}, {"max_tokens": "many"}],
        "temperature": [{"temperature": -1}],
        "sampling": [{"temperature": None}],
        "top-p": [{"top_p": 0}],
        "seed": [{"seed": -1}],
        "stop string": [{"stop": ""}, {"stop": ["x", ""]}],
        "span": [{"span": 3}],
        "cloud-share": [{"cloud_share": 0.5}],
    }
)
def test_bad_wishes(alone: Pair, given: dict[str, Any], said: str) -> None:
    for way in (alone.ask, alone.stream):
        with pytest.raises(UsageError) as caught:
            way(QUESTION, **given)
        assert said in str(caught.value)


class Mute(MaxProb):
    needs: Any = 3


@cases(
    {
        "1.5": [{"cloud_share": 1.5}],
        "'none.gguf'": [{"edge": "none.gguf"}],
        "'./owner/repo'": [{"edge": Path("owner/repo")}, {"cloud": Path("owner/repo")}],
        "'./no/where'": [{"router": Path("no/where")}],
        NOWHERE: [{"cloud": NOWHERE}],
        "'coin'": [{"router": "coin"}],
        "cloud": [{"cloud": []}],
        "'cloud'": [{"clod": "none"}],
        "'zzzz'": [{"zzzz": 1}],
        "UTF-8": [{"system": "\udce9"}],
        "cloud-engine": [{"cloud": bundled("cloud"), "cloud_engine": "vllm"}],
        "edge model": [{"edge": None}, {"edge": b"bundled"}],
        "router": [{"router": 3}, {"router": MaxProb}],
        "'Mute'": [{"router": Mute()}],
    }
)
def test_bad_settings(given: dict[str, Any], said: str) -> None:
    with pytest.raises(EdgewiseError) as caught:
        Pair(**given)
    assert said in str(caught.value)


def test_neither_file_nor_environment_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgewise.toml").write_text("max-tokens = 1\nspam = 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEWISE_CLOUD", "none")
    with Pair(threads=1) as pair:
        assert pair.cloud is not None
        assert pair.settings == Settings(threads=1, verify="on")


@pytest.mark.parametrize("kind", [str, Path])
def test_addresses_may_be_text_or_paths(tmp_path: Path, kind: type, bpe_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(bpe_path)
    edge, cloud = kind(tmp_path / "a.gguf"), kind(bpe_path)
    with Pair(edge, cloud=cloud, router="margin", threads=1, max_tokens=4) as pair:
        assert (pair.edge.name, pair.card) == ("a", None)
        assert pair.both() == (pair.edge, pair.cloud)
        assert len(pair.ask("Hello").tokens) <= 4
    with Pair(edge, threads=1) as pair, pytest.raises(UsageError, match="needs a cloud"):
        pair.both()
    with Pair(cloud="none", router=kind(bundled("router")), threads=1) as pair:
        assert pair.card is not None


def is_closed(model: LlamaModel) -> bool:
    """Whether its vocabulary is gone."""
    try:
        model.tokenizer.encode(QUESTION)
    except UsageError:
        return True
    return False


def test_what_is_open_already_stays_open() -> None:
    edge, large = LlamaModel(bundled("edge"), threads=1), LlamaModel(bundled("cloud"), threads=1)
    cloud = LocalCloud(large)
    with Pair(edge, cloud=cloud, router=Constant(1.0), threshold=0.5, max_tokens=4) as pair:
        assert (pair.edge, pair.cloud, pair.card) == (edge, cloud, None)
        assert {token.source for token in pair.ask(QUESTION).tokens} == {"cloud"}
    assert not is_closed(edge)
    assert not is_closed(large)
    with Pair(edge) as pair:
        assert pair.cloud is None
    with Pair(edge, cloud=bundled("cloud"), router=MaxProb()) as pair:
        opened: Any = pair.cloud
        assert pair.ask(QUESTION).text
    assert is_closed(opened.model)
    with Pair("bundled", cloud=cloud, threads=1) as pair:
        opened = pair.edge
        pair.close()
        pair.close()
    assert is_closed(opened)
    assert not is_closed(large)
    cloud.close()
    edge.close()


OPTIONS: dict[str, Any] = {"ctx": 512, "threads": 1, "slots": 2, "gpu_layers": 0}
OPTIONS |= {"cloud_key": "sk-1", "cloud_engine": "vllm"}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_an_open_model_cannot_honour(name: str) -> None:
    clouds = [ScriptedCloud(noise()), *([] if name.startswith("cloud") else [None, "none"])]
    for cloud in clouds:
        with pytest.raises(UsageError, match=name.replace("_", "-")):
            Pair(ScriptedEdge(noise()), cloud=cloud, **{name: OPTIONS[name]})


def test_a_pair_that_cannot_be_made_leaves_nothing_open(
    bpe_path: Path, other_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = LlamaModel.close

    def noted(self: LlamaModel) -> None:
        closed.append(self.name)
        close(self)

    monkeypatch.setattr(LlamaModel, "close", noted)
    with pytest.raises(CloudUnavailable):
        Pair(bpe_path, cloud=NOWHERE, threads=1)
    assert closed == ["bpe"]
    closed.clear()
    monkeypatch.setattr(LocalCloud, "check_vocabulary", _failing)
    with pytest.raises(ModelError):
        Pair(bpe_path, cloud=other_path, threads=1)
    assert sorted(set(closed)) == ["bpe", "other"]
    with LlamaModel(other_path, threads=1) as other:
        closed.clear()
        with pytest.raises(ModelError):
            Pair(bpe_path, cloud=LocalCloud(other), threads=1)
        assert closed == ["bpe"]


def _failing(*_: object) -> str:
    raise ModelError("the weights are gone", hint="load them again")


def test_models_of_two_vocabularies_make_a_pair(bpe_path: Path, other_path: Path) -> None:
    with LlamaModel(other_path, threads=1) as other:
        for cloud in (other_path, LocalCloud(other)):
            with Pair(bpe_path, cloud=cloud, router="constant:1", threads=1) as pair:
                assert isinstance(pair.cloud, Adapter)
                answer = pair.ask("Why is the sky blue?", max_tokens=8)
                assert answer.usage.cloud_calls
        # What was open stays its owner's.
        assert not is_closed(other)


def test_credit_is_carried_from_answer_to_answer() -> None:
    """Each answer by itself would start with eight tokens of credit: 40% of 20 tokens."""
    given: dict[str, Any] = {"cloud_share": 0.05, "speculate": 0, "router": Constant(0.9)}
    with Pair(ScriptedEdge(noise(1)), cloud=ScriptedCloud(noise(2)), **given) as pair:
        answers = [pair.ask(list(b"Tell me %d:" % i), max_tokens=20) for i in range(20)]
        written = sum(len(answer.tokens) for answer in answers)
        asked = sum(a.usage.cloud_tokens + a.usage.wasted_tokens for a in answers)
        assert 0 < asked <= 0.05 * written + INITIAL_BUCKET
        pair.forget()
        assert pair.ask(list(b"Tell me:"), max_tokens=8).usage.cloud_tokens > 0


def test_an_answer_may_have_a_policy_of_its_own() -> None:
    script = replying("blue sky", prompt="Q: sky? A:")
    asked = list(b"Q: sky? A:")
    cloud = ScriptedCloud(script)

    def shares(pair: Pair, share: float) -> float:
        policy = Policy(cloud_share=share, threshold=0.0)
        with pair.stream(asked, policy=policy) as events:
            return collect(events).usage.cloud_share

    with Pair(ScriptedEdge(script), cloud=cloud, router=Constant(1.0), cloud_share=0.0) as pair:
        assert pair.ask(asked).usage.cloud_calls == 0
        # Half of what is left is spent by each answer of one share, whatever those of others do.
        for share in (0.01, 0.02):
            assert [shares(pair, share) for _ in range(3)] == pytest.approx([8 / 9, 4 / 9, 2 / 9])
    assert cloud.opened == 6


def test_several_threads_may_ask_at_a_time() -> None:
    with Pair(cloud="none", slots=3, threads=1) as pair, ThreadPoolExecutor(3) as pool:
        answers = pool.map(pair.ask, [QUESTION] * 3)
        assert {answer.text for answer in answers} == {pair.ask(QUESTION).text}


def test_a_conversations_next_turn_finds_the_last_one() -> None:
    for keeps in (True, False):
        with Pair(cloud="none", keep_prefixes=keeps, threads=1) as pair:
            first = pair.ask(QUESTION, max_tokens=8)
            turns = [Message("user", QUESTION), Message("assistant", first.text)]
            usage = pair.ask([*turns, Message("user", "And iron?")], max_tokens=2).usage
            assert (usage.cached_tokens > 0) is keeps


def test_models_for_routers_of_ones_own() -> None:
    with open_models(Settings(threads=1, router="no-such-router")) as pair:
        edge, cloud = pair.both()
        assert cloud.local is not None
        sessions = [edge.session(), edge.session()]
        sessions[0].open([1])
        assert pair.router.score(sessions[0].step()) == 0
        for session in sessions:
            session.close()


def test_a_loop_that_breaks_off_keeps_no_slot(alone: Pair) -> None:
    for _ in range(3):
        for event in alone.stream(QUESTION):
            if isinstance(event, Token):
                break
    assert alone.ask(QUESTION).text


INFINITE, NONE = float("inf"), float("nan")
UNUSABLE = [{}, {"top_k": 20}, {"temp": -1.0}, {"temp": NONE}, {"temp": 0.5, "top_k": INFINITE}]
TEMPERED = {"temp": 0.25, "top_k": 20, "top_p": 0.5}


@pytest.mark.parametrize(
    ("said", "drawn"),
    [(TEMPERED, (0.25, 20, 0.5, 0.0)), *((said, (0.7, 0, 1.0, 0.05)) for said in UNUSABLE)],
)
def test_a_chat_draws_as_the_models_file_says(
    tmp_path: Path, said: dict[str, float], drawn: tuple[float, ...]
) -> None:
    path = write_transformer(tmp_path / "m.gguf", byte_level(), sampling=said)
    with Pair(path, cloud="none", threads=1) as pair:
        sampling = pair.chat_sampling
    assert sampling is not None
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == drawn


@pytest.mark.parametrize("own", [None, ByteTokenizer("<other>")])
def test_a_chat_draws_beside_a_cloud_of_another_vocabulary(
    alone: Pair, own: ByteTokenizer | None
) -> None:
    """Only beside one that takes text it is greedy, and where the pair is bundled."""
    cloud = LocalCloud(ScriptedEdge(noise(2), tokenizer=own))
    with Pair(ScriptedEdge(noise()), cloud=cloud, router="entropy") as pair:
        assert pair.chat_sampling is not None
    assert alone.chat_sampling is None


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_a_chat_is_greedy_beside_a_cloud_that_reads(form: Any) -> None:
    """Its API has no filters, so each whole answer would be refused."""
    rooted = EdgeAbilities(text=True, rewinds="no")
    with closing(ChatReader(form=form)) as served:
        given: dict[str, Any] = {"cloud": served.url, "cloud_engine": form}
        with Pair(ScriptedEdge(noise()), escalate=1.0, **given) as pair:
            answer = collect(pair.stream("Tell me about tin.", sampling=pair.chat_sampling))
            assert pair.chat_sampling is None
        # Seen: beside an edge that cannot roll back it was asked to continue, and always failed.
        with pytest.raises(UsageError, match="reads passages"):
            Pair(ScriptedEdge(noise(), abilities=rooted), **given)
    assert answer.text == "A whole answer."
