"""A cloud of another vocabulary: what it is sent, and what of its words becomes whose ids."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.bridge.adapter import Bridge, bridged
from edgewise.cloud.bridge.session import AT_ONCE, LONGEST
from edgewise.cloud.connect import open_engine
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Completion
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    VocabularyMismatch,
)
from edgewise.prompts import Message, Prompt, prompt_ids, prompt_of
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, Script, replying
from tests.doubles.around import HeldCloud
from tests.gateway.running import gateway
from tests.hub_files import vocabulary_of, write_tokenizer
from tests.llama_server_process import llama_server

EDGE, OWN = ByteTokenizer(), ByteTokenizer("<other>")
ASKED = "sky: "
PROMPT = Prompt(tuple(ASKED.encode()))


def bridge(script: Script, **more: object) -> tuple[Bridge, ScriptedCloud]:
    cloud = ScriptedCloud(script, tokenizer=OWN, **more)  # type: ignore[arg-type]
    return Bridge(cloud, own=OWN, edge=EDGE), cloud


def ask(model: CloudModel, answer: str | bytes, n: int = 1, prompt: Prompt = PROMPT) -> Completion:
    written = answer.encode() if isinstance(answer, str) else answer
    with closing(model.open(prompt)) as session:
        ids = [*prompt.ids, *written]
        return session.ask(ids, n, Sampling(), 20).result(60)


def test_words_come_whole_and_blanks_once() -> None:
    model, cloud = bridge(replying("so it is.", prompt=ASKED))
    completion = ask(model, "so")
    assert bytes(completion.ids) == b" it"
    assert completion.written == 8
    assert completion.logprobs == (None,) * 3
    completion.check(asked=9, prompt=99, size=EDGE.size)
    # The blank is held back: it comes again, and is dropped.
    assert bytes(ask(model, "so ").ids) == b"it"
    assert bytes(cloud.asks[-1][0]) == b"sky: so"
    assert bytes(ask(model, "so", 2).ids) == b" it is"


def test_an_end_is_the_edges_own() -> None:
    model, _ = bridge(replying("so it is.", prompt=ASKED))
    assert bytes(ask(model, "so it").ids) == b" is"
    completion = ask(model, "so it", 2)
    assert bytes(completion.ids[:4]) == b" is."
    assert completion.stopped
    assert completion.ids[-1] in EDGE.eos_ids
    assert ask(model, "so it is.").ids == (min(EDGE.eos_ids),)


def test_a_long_word_is_asked_for_again() -> None:
    word = "incomprehensibilities"
    model, cloud = bridge(replying(f"{word} all", prompt=ASKED))
    assert bytes(ask(model, "").ids) == word.encode()
    assert [n for _, n in cloud.asks] == [8, 8, 8]
    assert bytes(cloud.asks[1][0]) == f"sky: {word[:8]}".encode()


def test_many_words_are_asked_for_in_parts() -> None:
    text = " ".join(["so", "it", "is"] * 200)
    model, cloud = bridge(replying(text, prompt=ASKED))
    assert bytes(ask(model, "", 500).ids).decode() == " ".join(text.split(" ")[:500])
    assert max(n for _, n in cloud.asks) == AT_ONCE


def test_a_word_without_an_end_is_none() -> None:
    model, cloud = bridge(replying("x" * 99, prompt=ASKED))
    with pytest.raises(CloudRejected, match="no whole word"):
        ask(model, "")
    assert sum(n for _, n in cloud.asks) == LONGEST


def test_never_half_a_character() -> None:
    model, _ = bridge(replying("日本語", prompt=ASKED))
    assert bytes(ask(model, "").ids).decode() == "日"
    assert bytes(ask(model, "日", 2).ids[:-1]).decode() == "本語"
    with pytest.raises(CloudRejected, match="inside of a character"):
        ask(model, "日".encode()[:2])


@pytest.mark.parametrize("error", [CloudTimeout("late."), CloudUnavailable("gone.")])
@pytest.mark.parametrize("first", [0, 1])
def test_a_fault_is_passed_on(error: CloudError, first: int) -> None:
    """Of a later request of the consult, too."""
    script = replying("x" * 12, prompt=ASKED)
    model, _ = bridge(script, fault=lambda number: error if number >= first else None)
    with pytest.raises(type(error), match=str(error)):
        ask(model, "")


class Strange(ScriptedCloud):
    """Answers as it is told."""

    def __init__(self, completion: Completion) -> None:
        super().__init__(replying("", prompt=ASKED), tokenizer=OWN)
        self.completion = completion

    def open(self, prompt: Prompt) -> "Strange":  # type: ignore[override]
        return self

    def ask(self, *_: object) -> "Future[Completion]":
        future: Future[Completion] = Future()
        future.set_result(self.completion)
        return future


@pytest.mark.parametrize(
    "completion",
    [
        Completion(ids=(), logprobs=()),
        Completion(ids=(999,), logprobs=(None,)),
        Completion(ids=(1,) * 99, logprobs=(None,) * 99),
        Completion(ids=(65,), logprobs=()),
        Completion(ids=(65,), logprobs=(None,), cached=10**9),
    ],
)
def test_a_completion_that_is_none_is_refused(completion: Completion) -> None:
    with pytest.raises(CloudProtocolError):
        ask(Bridge(Strange(completion), own=OWN, edge=EDGE), "")


def test_the_meter_counts_every_request_of_a_consult() -> None:
    part = Completion(ids=tuple(b" so"), logprobs=(None,) * 3, cached=3, computed=2)
    completion = ask(Bridge(Strange(part), own=OWN, edge=EDGE), "")
    assert (bytes(completion.ids), completion.billed) == (b" so", 6)
    assert (completion.cached, completion.computed) == (6, 4)


def test_giving_up_gives_up_the_clouds_consult() -> None:
    cloud = HeldCloud(tokenizer=OWN)
    model = Bridge(cloud, own=OWN, edge=EDGE)
    asked = model.open(PROMPT).ask(list(PROMPT.ids), 1, Sampling(), 30)
    assert asked.cancel()
    assert cloud.flying[0].cancelled()


def test_messages_go_through_the_clouds_own_template() -> None:
    class Talking(ByteTokenizer):
        chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<me>"

    own = Talking("<other>")
    cloud = ScriptedCloud(replying("yes it is", prompt="<user>so?<me>"), tokenizer=own)
    model = Bridge(cloud, own=own, edge=EDGE)
    asked = prompt_of(EDGE, [Message("user", "so?")])
    assert bytes(ask(model, "", prompt=asked).ids) == b"yes"
    assert bytes(cloud.asks[0][0]) == b"<user>so?<me>"
    # What was never messages goes as text.
    ask(model, "", prompt=Prompt(tuple(b"so?")))
    assert bytes(cloud.asks[-1][0]) == b"so?"


def test_a_template_that_refuses_is_a_consult_that_failed() -> None:
    class Refusing(ByteTokenizer):
        chat_template = "{{ raise_exception('no system role') }}"

    own = Refusing("<other>")
    model = Bridge(ScriptedCloud(replying("", prompt=""), tokenizer=own), own=own, edge=EDGE)
    asked = prompt_of(EDGE, [Message("system", "Be brief."), Message("user", "so?")])
    with pytest.raises(CloudRejected, match="no system role"):
        ask(model, "", prompt=asked)


def test_the_proof() -> None:
    model, _ = bridge(replying("", prompt=ASKED))
    assert "its own tokenizer" in model.check(EDGE)
    with pytest.raises(VocabularyMismatch, match="another edge vocabulary"):
        model.check(OWN)
    lying = Bridge(ScriptedCloud(replying("", prompt=ASKED)), own=OWN, edge=EDGE)
    with pytest.raises(VocabularyMismatch, match="as its tokenizer does") as refused:
        lying.check(EDGE)
    assert refused.value.setting == "cloud_tokenizer"
    same = ScriptedCloud(replying("", prompt=ASKED))
    assert bridged(same, EDGE, ByteTokenizer()) is same


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with llama_server(bundled("cloud")) as url:
        yield url


@pytest.fixture(
    params=[
        "local",
        *[pytest.param(name, marks=pytest.mark.deep) for name in ("llama-server", "gateway")],
    ]
)
def backend(request: pytest.FixtureRequest) -> Iterator[CloudModel]:
    """The bundled cloud model, in this process and elsewhere."""
    with ExitStack() as stack:
        if request.param == "local":
            cloud: CloudModel = LocalCloud(LlamaModel(bundled("cloud"), threads=1))
        else:
            url = request.getfixturevalue("engine")
            if request.param == "gateway":
                url = stack.enter_context(gateway([url])).url
            cloud = open_engine(url)
        yield stack.enter_context(closing(cloud))


@pytest.mark.parametrize("named", ["cloud.gguf", "folder"])
def test_word_for_word_it_writes_what_the_large_model_writes_in_one_go(
    backend: CloudModel, other_path: Path, tmp_path: Path, named: str
) -> None:
    address = str(bundled("cloud"))
    if named == "folder":
        address = str(write_tokenizer(tmp_path / "hub", vocabulary_of(bundled("cloud"))))
    own = open_tokenizer(address)
    with LlamaModel(other_path, threads=1) as small:
        edge = small.tokenizer
        model = bridged(backend, edge, own)
        assert isinstance(model, Bridge)
        assert model.local is None
        assert model.check(edge)
        asked = prompt_of(edge, [Message("user", "Tell me about the heron.")])
        theirs = prompt_ids(own, asked.messages or ())
        with closing(model.cloud.open(Prompt(tuple(theirs)))) as session:
            whole = session.ask(theirs, 64, Sampling(), 60).result(60)
        ids = list(asked.ids)
        with closing(model.open(asked)) as session:
            for _ in range(99):
                completion = session.ask(ids, 1, Sampling(), 60).result(60)
                ids += completion.ids
                if completion.stopped:
                    break
        assert completion.stopped
        assert completion.ids[-1] in edge.eos_ids
        written = bytes_of(edge, ids[len(asked.ids) :])
        assert written == bytes_of(own, [i for i in whole.ids if i not in own.eos_ids])
