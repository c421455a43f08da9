"""Between two vocabularies nothing is lost, doubled or broken, wherever a text is cut."""

from collections.abc import Iterator, Mapping
from functools import cache
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from edgewise.cloud.adapter.word_boundary import (
    WordBoundaries,
    added,
    divides,
    held_back,
    kept,
    opens_word,
    written_text,
)
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.vocabulary import bytes_of, ids_of_text
from edgewise.errors import CloudProtocolError, NothingUsable
from tests.vocabularies import vocabularies

NAMES = ("bundled", "bytes", "pieces", "other", "smollm2")

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


def of(known: Mapping[str, Tokenizer], name: str) -> Tokenizer:
    return known.get(name) or known["other"]


def reply_to(cloud: Tokenizer, text: str, sent: str, tokens: int) -> tuple[bytes, bool]:
    """What a cloud that means `text` writes behind `sent`, of so many tokens."""
    ids = cloud.encode(text[len(sent) :])
    data = bytes_of(cloud, ids[:tokens])
    behind = len(bytes_of(cloud, ids)) - len(text[len(sent) :].encode())
    return data[behind:], tokens >= len(ids)


@given(
    text=texts,
    edge=st.sampled_from(NAMES),
    cloud=st.sampled_from(NAMES),
    rng=st.randoms(use_true_random=False),
)
def test_two_that_mean_one_text_write_it(
    known: Mapping[str, Tokenizer], text: str, edge: str, cloud: str, rng: Random
) -> None:
    """The edge writes some tokens, the cloud some words, to the end: the same bytes."""
    small, large = of(known, edge), of(known, cloud)
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
            ids += single_bytes(small, rest[:1])
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


def single_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return [letters(tokenizer)[byte] for byte in data]


@cache
def letters(tokenizer: Tokenizer) -> Mapping[int, int]:
    """Ids of single bytes: a real vocabulary may lack those of characters that nobody uses."""
    pieces = {token: tokenizer.piece(token) for token in range(tokenizer.size)}
    return {piece[0]: token for token, piece in pieces.items() if len(piece) == 1}


def speaks(tokenizer: Tokenizer, text: str) -> bool:
    return set(text.encode()) <= set(letters(tokenizer))


@given(text=texts, at=st.integers(0, 60), name=st.sampled_from(NAMES))
def test_a_text_is_spelled_behind_any_other(
    known: Mapping[str, Tokenizer], text: str, at: int, name: str
) -> None:
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
def test_a_reply_that_is_cut_says_nothing_that_the_whole_one_does_not(
    text: str, size: int, n: int
) -> None:
    whole = kept(text.encode(), "", n, ended=True)
    cut = kept(text.encode()[:size], "", n, ended=False)
    assert text.startswith(cut.text)
    assert whole.text.startswith(cut.text)


@pytest.mark.parametrize(
    ("reply", "held", "n", "ended", "expected"),
    [
        (" Paris, the", "", 1, False, (" Paris", True, False)),
        (" Paris, the", "", 2, False, (" Paris,", True, False)),
        (" Paris", "", 1, False, ("", False, False)),  # more of the word may follow
        (" Paris", "", 1, True, (" Paris", True, True)),
        (" Paris\n", "", 1, True, (" Paris\n", True, True)),
        (" Paris is", " ", 1, False, ("Paris", True, False)),  # the blank was held back
        (" Paris is", "  ", 1, False, ("Paris", True, False)),
        ("Paris is", " ", 1, False, ("Paris", True, False)),  # stripped by who sent it
        ("\nParis is", " ", 1, False, ("\nParis", True, False)),
        ("", "", 1, False, ("", False, False)),
        ("", " ", 1, True, ("", True, True)),
        ("中国人", "", 2, False, ("中国", True, False)),
        ("42 and", "", 1, False, ("42", True, False)),
        ("👩‍👩‍👧 ok", "", 1, False, ("👩‍👩‍👧", True, False)),
        ("👍🏽👍🏽👍🏽", "", 2, False, ("👍🏽👍🏽", True, False)),
        ("❤️😊", "", 1, False, ("❤️", True, False)),
        ("🇩🇪🇫🇷 ok", "", 1, False, ("🇩🇪🇫🇷", True, False)),
        ("e\u0301te\u0301 fini", "", 1, False, ("e\u0301te\u0301", True, False)),
        ("ok \ufffd no", "", 9, True, ("ok", False, False)),
    ],
)
def test_words(
    reply: str, held: str, n: int, ended: bool, expected: tuple[str, bool, bool]
) -> None:
    assert kept(reply.encode(), held, n, ended=ended) == expected


@pytest.mark.parametrize(
    ("before", "after", "opens"),
    [
        ("", "x", True),
        ("The", " sky", True),
        ("The ", "4", True),
        ("The", "", True),
        ("un", "believable", False),
        ("12", "3", False),
        ("12", " 3", True),
        ("is", ".", True),
        ("..", ".", False),
        ("x", "2", True),
        ("中", "国", True),
        ("a", "中", True),
        ("ไ", "ท", True),
        ("e", "\u0301", False),
        ("👩", "\u200d", False),
        ("👩\u200d", "👧", False),
        ("\n", "The", True),
    ],
)
def test_where_a_word_opens(before: str, after: str, opens: bool) -> None:
    assert opens_word(before, after) is opens


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
        ("ha", " ha ha"),
        ("", "anything"),
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


def test_the_clouds_own_tokens_say_where_it_divides(known: Mapping[str, Tokenizer]) -> None:
    for tokenizer in known.values():
        for text in PROBES:
            ends = {len(bytes_of(tokenizer, tokenizer.encode(text)[:n])) for n in range(99)}
            extra = len(bytes_of(tokenizer, tokenizer.encode(text))) - len(text.encode())
            for at in range(1, len(text) + 1):
                place = len(text[:at].encode()) + extra
                assert divides(tokenizer, text, at) is (place in ends), (text, at)


def test_no_consult_inside_of_a_character_or_a_word(known: Mapping[str, Tokenizer]) -> None:
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
