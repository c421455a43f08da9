"""A cloud of another vocabulary: between the two nothing is lost, doubled or broken."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from edgewise.addresses import bundled
from edgewise.cloud.adapter.ids import Adapter, adapted
from edgewise.cloud.adapter.session import AT_ONCE, LONGEST
from edgewise.cloud.adapter.word_boundary import (
    WordBoundaries,
    added,
    divides,
    held_back,
    kept,
    opens_word,
    written_text,
)
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.local import LocalCloud
from edgewise.completion import Completion
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.edge.vocabulary import bytes_of, ids_of_text
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    NothingUsable,
    VocabularyMismatch,
)
from edgewise.prompts import Message, Prompt, prompt_ids, prompt_of
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, Script, noise, replying
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.wrapped_cloud import HeldCloud
from tests.gateway.running import gateway
from tests.hub_files import vocabulary_of, write_tokenizer
from tests.llama_server_process import llama_server
from tests.vocabularies import vocabularies

Known = Mapping[str, Tokenizer]
name = st.sampled_from(["bundled", "bytes", "pieces", "other", "smollm2"])

words = st.sampled_from(
    [
        *("Paris", "the", "unbelievable", "don't", "naïve", "e\u0301t\u00e9"),
        *("x_1", "3.14", "2026"),
        *("return", "f(x)", "==", "...", "—", "日本語", "中", "русский", "हिन्दी", "ไทย", "한국어"),
        *("👍🏽", "👩‍👩‍👧", "🇩🇪🇫🇷", "❤️", "1️⃣", "<|im_end|>", "<think>", "Ġ", "<0x41>", "\x00"),
    ]
)
gaps = st.sampled_from(["", " ", " ", " ", "  ", "\n", "\n\n", ":\n\n  ", "\t", "\u00a0", " \n"])
texts = st.one_of(
    st.sampled_from(PROBES),
    st.lists(st.tuples(gaps, words), max_size=8).map(lambda p: "".join(g + w for g, w in p)),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=24),
)
"""SentencePiece reads a blank where "▁" stands, so no cloud of that kind can mean one."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Tokenizer]]:
    with vocabularies(tmp_path_factory.mktemp("vocabularies")) as found:
        yield found


def of(known: Known, name: str) -> Tokenizer:
    return known.get(name) or known["other"]


def reply_to(cloud: Tokenizer, text: str, sent: str, tokens: int) -> tuple[bytes, bool]:
    """What a cloud that means `text` writes behind `sent`, of so many tokens."""
    ids = cloud.encode(text[len(sent) :])
    data = bytes_of(cloud, ids[:tokens])
    behind = len(bytes_of(cloud, ids)) - len(text[len(sent) :].encode())
    return data[behind:], tokens >= len(ids)


@pytest.mark.deep
@given(text=texts, names=st.tuples(name, name), rng=st.randoms(use_true_random=False))
def test_two_that_mean_one_text_write_it(known: Known, text: str, names: Any, rng: Random) -> None:
    """The edge writes some tokens, the cloud some words, to the end: the same bytes."""
    small, large = (of(known, name) for name in names)
    assume(speaks(small, text) and speaks(large, text))
    boundaries = WordBoundaries(small, large)
    ids: list[int] = []
    for _ in range(200):
        data = bytes_of(small, ids)
        assert text.encode().startswith(data)
        rest = text.encode()[len(data) :].decode("utf-8", "ignore")
        coming = ids_of_text(small, ids, rest) or []
        written = written_text(data)
        if written is None or not coming:
            # Inside of a character: its bytes are spelled one by one.
            rest = text.encode()[len(data) :]
            if not rest:
                break
            ids.append(letters(small)[rest[0]])
            continue
        if boundaries.refused(ids, 0, coming[0]) is None and rng.random() < 0.6:
            sent, held = held_back(written)
            reply, ended = reply_to(large, text, sent, rng.randint(1, 9))
            found = kept(reply, held, rng.randint(1, 3), ended=ended)
            assert found.text.encode() in reply
            assert not found.ends or (written + found.text) == text
            ids += ids_of_text(small, ids, found.text) or []
            if found.text:
                continue
        ids.append(coming[0])
    assert bytes_of(small, ids) == text.encode()


@cache
def letters(tokenizer: Tokenizer) -> Mapping[int, int]:
    """Ids of single bytes: a real vocabulary may lack those of characters that nobody uses."""
    pieces = {token: tokenizer.piece(token) for token in range(tokenizer.size)}
    return {piece[0]: token for token, piece in pieces.items() if len(piece) == 1}


def speaks(tokenizer: Tokenizer, text: str) -> bool:
    return set(text.encode()) <= set(letters(tokenizer))


@given(text=texts, at=st.integers(0, 60), name=name)
def test_a_text_is_spelled_behind_any(known: Known, text: str, at: int, name: str) -> None:
    tokenizer = of(known, name)
    try:
        before = ids_of_text(tokenizer, [], text[:at]) or []
        after = ids_of_text(tokenizer, before, text[at:]) or []
    except CloudProtocolError:
        assert not speaks(tokenizer, text)
        return
    assert bytes_of(tokenizer, before) == text[:at].encode()
    assert bytes_of(tokenizer, after) == text[at:].encode()
    assert not set(after) & (set(tokenizer.special) | tokenizer.eos_ids)


@given(reply=st.binary(max_size=24), held=st.sampled_from(["", " ", "  "]), n=st.integers(1, 3))
def test_whatever_bytes_come_whole_characters_are_kept(reply: bytes, held: str, n: int) -> None:
    found = kept(reply, held, n, ended=False)
    assert "\ufffd" not in found.text
    assert found.text.encode() in reply
    assert not found.ends


@given(text=texts, size=st.integers(0, 40), n=st.integers(1, 4))
def test_a_reply_that_is_cut_says_nothing_new(text: str, size: int, n: int) -> None:
    whole = kept(text.encode(), "", n, ended=True)
    cut = kept(text.encode()[:size], "", n, ended=False)
    assert text.startswith(cut.text)
    assert whole.text.startswith(cut.text)


@pytest.mark.parametrize(
    ("reply", "held", "n", "text"),
    [
        *((" Paris, the", "", 1, " Paris"), (" Paris, the", "", 2, " Paris,")),
        # The blank was held back, or stripped by who sent it.
        *((" Paris is", " ", 1, "Paris"), (" Paris is", "  ", 1, "Paris")),
        *(("Paris is", " ", 1, "Paris"), ("\nParis is", " ", 1, "\nParis")),
        *(("中国人", "", 2, "中国"), ("42 and", "", 1, "42"), ("❤️😊", "", 1, "❤️")),
        *(("👩‍👩‍👧 ok", "", 1, "👩‍👩‍👧"), ("👍🏽👍🏽👍🏽", "", 2, "👍🏽👍🏽")),
        *(("🇩🇪🇫🇷 ok", "", 1, "🇩🇪🇫🇷"), ("e\u0301te\u0301 fini", "", 1, "e\u0301te\u0301")),
    ],
)
def test_words(reply: str, held: str, n: int, text: str) -> None:
    assert kept(reply.encode(), held, n, ended=False) == (text, True, False)


@pytest.mark.parametrize(
    ("reply", "held", "n", "ended", "expected"),
    [
        (" Paris", "", 1, False, ("", False, False)),  # more of the word may follow
        ("", "", 1, False, ("", False, False)),
        (" Paris", "", 1, True, (" Paris", True, True)),
        (" Paris\n", "", 1, True, (" Paris\n", True, True)),
        ("", " ", 1, True, ("", True, True)),
        ("ok \ufffd no", "", 9, True, ("ok", False, False)),
    ],
)
def test_the_end_of_a_reply(reply: str, held: str, n: int, ended: bool, expected: Any) -> None:
    assert kept(reply.encode(), held, n, ended=ended) == expected


OPENS = [("", "x"), ("The", " sky"), ("The ", "4"), ("The", ""), ("12", " 3"), ("is", ".")]
OPENS += [("x", "2"), ("中", "国"), ("a", "中"), ("ไ", "ท"), ("\n", "The")]
INSIDE = [("un", "believable"), ("12", "3"), ("..", "."), ("e", "\u0301"), ("👩", "\u200d")]
INSIDE += [("👩\u200d", "👧")]


def test_where_a_word_opens() -> None:
    assert [one for one in OPENS if not opens_word(*one)] == []
    assert [one for one in INSIDE if opens_word(*one)] == []


@given(start=st.text("abc ", max_size=30), more=st.text("xyz ", max_size=12))
def test_an_echo_is_dropped(start: str, more: str) -> None:
    sent = f"So it all is, and will be, {start}."
    assert added(sent, sent + more) == more
    assert added(sent, f"\n{sent}{more}") == more
    assert added(sent, more) == more
    assert added(sent, f"{sent[:-1]}!{more}") == f"{sent[:-1]}!{more}"


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        ("| Paris is the capital | France |\n|", " Paris is the largest city | France |"),
        ("Paris is the capital of France. ", "Paris is the largest city of France, too."),
        ("for i in range(10):\n    x()\n", "for i in range("),
        *(("ha", " ha ha"), ("", "anything")),
    ],
)
def test_what_begins_alike_and_says_something_else_is_kept(sent: str, reply: str) -> None:
    assert added(sent, reply) == reply


def test_an_answer_that_is_begun_anew_is_no_outage() -> None:
    sent = "Paris is the capital of France, and has been so for long."
    for reply in (sent[:30], f"\n{sent[:40]}"):
        with pytest.raises(NothingUsable):
            added(sent, reply)


def test_blanks_are_held_back_and_ends_of_lines_go() -> None:
    assert held_back("so: ") == ("so:", " ")
    assert held_back("so:\n\n") == ("so:\n\n", "")
    assert held_back("so:\n \t") == ("so:\n", " \t")
    assert held_back("") == ("", "")


def test_the_clouds_own_tokens_say_where_it_divides(known: Known) -> None:
    for tokenizer in known.values():
        for text in PROBES:
            ends = {len(bytes_of(tokenizer, tokenizer.encode(text)[:n])) for n in range(99)}
            extra = len(bytes_of(tokenizer, tokenizer.encode(text))) - len(text.encode())
            for at in range(1, len(text) + 1):
                place = len(text[:at].encode()) + extra
                assert divides(tokenizer, text, at) is (place in ends), (text, at)


def test_no_consult_inside_of_a_character_or_a_word(known: Known) -> None:
    edge = known["bytes"]
    boundaries = WordBoundaries(edge)
    ids = edge.encode("naïve")
    for at in range(1, len(ids)):
        assert not boundaries.opens(ids[:at], 0, ids[at])
    half = [edge.piece(i) for i in ids].index("ï".encode()[:1])
    inside = WordBoundaries(edge, known["other"]).refused(ids[: half + 1], 0, ids[half + 1])
    assert inside == "mid_word"
    assert boundaries.opens(ids, 0, edge.encode(" x")[0])
    assert boundaries.opens(ids, 0, min(edge.eos_ids))


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
    text: str, answer: str, n: int, words: str, sent: Any
) -> None:
    model, cloud = adapter(replying(text, prompt=ASKED))
    completion = ask(model, answer, n)
    assert bytes(completion.ids).decode() == words
    assert completion.logprobs == (None,) * len(words.encode())
    assert max(asked for _, asked in cloud.asks) <= AT_ONCE
    if sent is not None:
        assert bytes(cloud.asks[-1][0]).decode() == ASKED + sent


def test_an_end_is_the_edges_own() -> None:
    model, _ = adapter(replying("so it is.", prompt=ASKED))
    for answer, words in (("so it", " is."), ("so it is.", ""), ("so it is", ".")):
        completion = ask(model, answer, 2)
        assert completion.ids == (*words.encode(), min(EDGE.eos_ids))
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


def saying(completion: Completion) -> Adapter:
    said = Flying()
    said.set_result(completion)
    cloud = WrappedCloud(adapter(noise())[1], lambda ids, n, send: said)
    return Adapter(cloud, own=OWN, edge=EDGE)


NO_COMPLETIONS = [
    *(Completion(ids=(), logprobs=()), Completion(ids=(999,), logprobs=(None,))),
    *(Completion(ids=(1,) * 99, logprobs=(None,) * 99), Completion(ids=(65,), logprobs=())),
    Completion(ids=(65,), logprobs=(None,), cached=10**9),
]


@pytest.mark.parametrize("completion", NO_COMPLETIONS)
def test_a_completion_that_is_none_is_refused(completion: Completion) -> None:
    with pytest.raises(CloudProtocolError):
        ask(saying(completion), "")


def test_the_meter_counts_every_request_of_a_consult() -> None:
    part = Completion(ids=tuple(b" so"), logprobs=(None,) * 3, cached=3, computed=2, prompt=5)
    completion = ask(saying(part), "")
    assert (bytes(completion.ids), completion.billed) == (b" so", 6)
    assert (completion.cached, completion.computed, completion.prompt) == (6, 4, 10)


def test_giving_up_gives_up_the_clouds_consult() -> None:
    cloud = HeldCloud(tokenizer=OWN)
    model = Adapter(cloud, own=OWN, edge=EDGE)
    asked = model.open(PROMPT).ask(ConsultRequest(list(PROMPT.ids), 1, 30))
    assert asked.cancel()
    assert cloud.flying[0].cancelled()


def test_messages_go_through_the_clouds_own_template() -> None:
    own = ByteTokenizer("<other>")
    own.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<me>"
    cloud = ScriptedCloud(replying("yes it is", prompt="<user>so?<me>"), tokenizer=own)
    model = Adapter(cloud, own=own, edge=EDGE)
    asked = prompt_of(EDGE, [Message("user", "so?")])
    assert bytes(ask(model, "", prompt=asked).ids) == b"yes"
    assert bytes(cloud.asks[0][0]) == b"<user>so?<me>"
    # What was never messages goes as text.
    ask(model, "", prompt=Prompt(tuple(b"so?")))
    assert bytes(cloud.asks[-1][0]) == b"so?"
    # One that refuses is a consult that failed.
    own.chat_template = "{{ raise_exception('no system role') }}"
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


ELSEWHERE = [pytest.param(name, marks=pytest.mark.deep) for name in ("llama-server", "gateway")]


@pytest.fixture(params=["local", *ELSEWHERE])
def backend(request: pytest.FixtureRequest) -> Iterator[CloudModel]:
    """The bundled cloud model, in this process and elsewhere."""
    with ExitStack() as stack:
        if request.param == "local":
            cloud: CloudModel = LocalCloud(LlamaModel(bundled("cloud"), threads=1))
        else:
            url = stack.enter_context(llama_server(bundled("cloud")))
            if request.param == "gateway":
                url = stack.enter_context(gateway([url])).url
            cloud = open_engine(url)
        yield stack.enter_context(closing(cloud))


@pytest.mark.parametrize("named", ["cloud.gguf", "folder"])
def test_word_for_word_it_writes_what_the_large_model_writes(
    backend: CloudModel, other_path: Path, tmp_path: Path, named: str
) -> None:
    address = bundled("cloud")
    if named == "folder":
        address = write_tokenizer(tmp_path / "hub", vocabulary_of(address))
    own = open_tokenizer(str(address))
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
