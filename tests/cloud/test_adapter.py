"""A cloud of another vocabulary: what it is sent, and what of its words becomes whose ids."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.adapter.ids import Adapter, adapted
from edgewise.cloud.adapter.session import AT_ONCE, LONGEST
from edgewise.cloud.base import CloudModel, ConsultRequest
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
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, Script, replying
from tests.doubles.wrapped_cloud import HeldCloud
from tests.gateway.running import gateway
from tests.hub_files import vocabulary_of, write_tokenizer
from tests.llama_server_process import llama_server

EDGE, OWN = ByteTokenizer(), ByteTokenizer("<other>")
ASKED = "sky: "
PROMPT = Prompt(tuple(ASKED.encode()))


def adapter(script: Script, **more: object) -> tuple[Adapter, ScriptedCloud]:
    cloud = ScriptedCloud(script, tokenizer=OWN, **more)  # type: ignore[arg-type]
    return Adapter(cloud, own=OWN, edge=EDGE), cloud


def ask(model: CloudModel, answer: str | bytes, n: int = 1, prompt: Prompt = PROMPT) -> Completion:
    written = answer.encode() if isinstance(answer, str) else answer
    with closing(model.open(prompt)) as session:
        ids = [*prompt.ids, *written]
        return session.ask(ConsultRequest(ids, n, 20)).result(60)


LONG, MANY = "incomprehensibilities", " ".join(["so", "it", "is"] * 200)
END = min(EDGE.eos_ids)


@pytest.mark.parametrize(
    ("text", "answer", "n", "words", "sent"),
    [
        ("so it is.", "so", 1, " it", "so"),
        ("so it is.", "so ", 1, "it", "so"),  # the blank is held back: it comes again
        ("so it is.", "so", 2, " it is", "so"),
        ("日本語", "", 1, "日", ""),
        (f"{LONG} all", "", 1, LONG, LONG[:16]),  # asked for again with what came
        (MANY, "", 500, " ".join(MANY.split(" ")[:500]), None),
    ],
)
def test_words_come_whole_and_blanks_once(
    text: str, answer: str, n: int, words: str, sent: str | None
) -> None:
    model, cloud = adapter(replying(text, prompt=ASKED))
    completion = ask(model, answer, n)
    assert bytes(completion.ids).decode() == words
    assert completion.logprobs == (None,) * len(words.encode())
    assert max(asked for _, asked in cloud.asks) <= AT_ONCE
    if sent is not None:
        assert bytes(cloud.asks[-1][0]).decode() == ASKED + sent


@pytest.mark.parametrize(
    ("answer", "words"), [("so it", " is."), ("so it is.", ""), ("so it is", ".")]
)
def test_an_end_is_the_edges_own(answer: str, words: str) -> None:
    model, _ = adapter(replying("so it is.", prompt=ASKED))
    completion = ask(model, answer, 2)
    assert completion.ids == (*words.encode(), END)
    assert completion.stopped


def test_no_part_of_a_word_or_of_a_character_is_one() -> None:
    model, cloud = adapter(replying("x" * 99, prompt=ASKED))
    with pytest.raises(CloudRejected, match="no whole word"):
        ask(model, "")
    assert sum(n for _, n in cloud.asks) == LONGEST
    requests, asked = model.requests(1)
    assert [n for _, n in cloud.asks] == [asked] * requests
    # An edge that is lost inside of one: the cloud writes it anew.
    with pytest.raises(CloudRejected):
        ask(model, "日".encode()[:2])
    assert bytes(cloud.asks[requests][0]).decode() == ASKED


@pytest.mark.parametrize("error", [CloudTimeout("late."), CloudUnavailable("gone.")])
@pytest.mark.parametrize("first", [0, 1])
def test_a_fault_is_passed_on(error: CloudError, first: int) -> None:
    """Of a later request of the consult, too."""
    script = replying("x" * 12, prompt=ASKED)
    model, _ = adapter(script, fault=lambda number: error if number >= first else None)
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
        ask(Adapter(Strange(completion), own=OWN, edge=EDGE), "")


def test_the_meter_counts_every_request_of_a_consult() -> None:
    part = Completion(ids=tuple(b" so"), logprobs=(None,) * 3, cached=3, computed=2, prompt=5)
    completion = ask(Adapter(Strange(part), own=OWN, edge=EDGE), "")
    assert (bytes(completion.ids), completion.billed) == (b" so", 6)
    assert (completion.cached, completion.computed, completion.prompt) == (6, 4, 10)


def test_giving_up_gives_up_the_clouds_consult() -> None:
    cloud = HeldCloud(tokenizer=OWN)
    model = Adapter(cloud, own=OWN, edge=EDGE)
    asked = model.open(PROMPT).ask(ConsultRequest(list(PROMPT.ids), 1, 30))
    assert asked.cancel()
    assert cloud.flying[0].cancelled()


def test_messages_go_through_the_clouds_own_template() -> None:
    class Talking(ByteTokenizer):
        chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<me>"

    own = Talking("<other>")
    cloud = ScriptedCloud(replying("yes it is", prompt="<user>so?<me>"), tokenizer=own)
    model = Adapter(cloud, own=own, edge=EDGE)
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
    model = Adapter(ScriptedCloud(replying("", prompt=""), tokenizer=own), own=own, edge=EDGE)
    asked = prompt_of(EDGE, [Message("system", "Be brief."), Message("user", "so?")])
    with pytest.raises(CloudRejected, match="no system role"):
        ask(model, "", prompt=asked)


def test_the_proof() -> None:
    model, _ = adapter(replying("", prompt=ASKED))
    assert "its own tokenizer" in model.check_vocabulary(EDGE)
    with pytest.raises(VocabularyMismatch, match="another edge vocabulary"):
        model.check_vocabulary(OWN)
    lying = Adapter(ScriptedCloud(replying("", prompt=ASKED)), own=OWN, edge=EDGE)
    with pytest.raises(VocabularyMismatch, match="as its tokenizer does") as refused:
        lying.check_vocabulary(EDGE)
    assert refused.value.setting == "cloud_tokenizer"
    same = ScriptedCloud(replying("", prompt=ASKED))
    assert adapted(same, EDGE, ByteTokenizer()) is same


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
        model = adapted(backend, edge, own)
        assert isinstance(model, Adapter)
        assert model.local is None
        assert model.check_vocabulary(edge)
        asked = prompt_of(edge, [Message("user", "Tell me about the heron.")])
        theirs = prompt_ids(own, asked.messages or ())
        with closing(model.cloud.open(Prompt(tuple(theirs)))) as session:
            whole = session.ask(ConsultRequest(theirs, 64, 60)).result(60)
        ids = list(asked.ids)
        with closing(model.open(asked)) as session:
            for _ in range(99):
                completion = session.ask(ConsultRequest(ids, 1, 60)).result(60)
                ids += completion.ids
                if completion.stopped:
                    break
        assert completion.stopped
        assert completion.ids[-1] in edge.eos_ids
        written = bytes_of(edge, ids[len(asked.ids) :])
        assert written == bytes_of(own, [i for i in whole.ids if i not in own.eos_ids])
