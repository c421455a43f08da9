"""Passages: where an answer is cut, and which replies are verdicts."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.passages import (
    LONGEST,
    MOST,
    SHORTEST,
    ends_passage,
    in_code,
    question,
    sentence_ends,
    verdict_of,
)
from edgewise.errors import NothingUsable
from edgewise.prompts import Message

SENTENCES = ("Two and two are four.", " Three and three are seven.\n", "    return x")


def cut(*pieces: str, code: bool = False) -> list[str]:
    """The sentences of a passage of such tokens."""
    ends = [0, *sentence_ends(pieces, code=code)]
    return ["".join(pieces[start:end]) for start, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("pieces", "sentences"),
    [
        (["Yes", ".", " No", "!", " C"], ["Yes.", " No!", " C"]),
        (["It is 3", ".", "5 m", ".", "\n\n", "So", ":"], ["It is 3.5 m.\n\n", "So:"]),
        (["1", ".", " Add", ".", "\n", "2", ".", " Take", "."], ["1. Add.\n", "2. Take."]),
        (["She said \"no", ".\"", " He", " left", "."], ['She said "no."', " He left."]),
        (["水は百度。", "沸く。"], ["水は百度。", "沸く。"]),
        (["मैं", " ठीक हूँ।", " वह", " आया।"], ["मैं ठीक हूँ।", " वह आया।"]),
        (["هل هذا", "؟", " نعم."], ["هل هذا؟", " نعم."]),
        (["Er sagte: „Ja", ".“", " Dann"], ["Er sagte: „Ja.“", " Dann"]),
        (["Code", ":\n", "```py\n", "x = 1. \n", "\n", "  y", " = 2\n", "```", "\n", "Done."],
         ["Code:\n", "```py\n", "x = 1. \n\n", "  y = 2\n", "```\n", "Done."]),
        (["", "Yes", ".", ""], ["Yes."]),
    ],
)  # fmt: skip
def test_a_passage_is_cut_into_sentences_and_lines_of_code(
    pieces: list[str], sentences: list[str]
) -> None:
    assert cut(*pieces) == sentences


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        (["Yes\n", "", "🎉", " ok\n"], [1, 4]),
        (["沸く。", "", "", "水", "だ"], [1, 5]),
    ],
)
def test_a_character_of_several_tokens_belongs_to_the_sentence_that_it_begins(
    pieces: list[str], ends: list[int]
) -> None:
    assert sentence_ends(pieces, code=False) == ends


@given(
    st.lists(st.sampled_from(["a", ". ", ".", "\n", " ", "```\n", "。", "", "1"])), st.booleans()
)
def test_no_token_is_lost_between_sentences(pieces: list[str], code: bool) -> None:
    ends = sentence_ends(pieces, code=code)
    assert ends == sorted(set(ends))
    assert ends[-1:] == ([len(pieces)] if pieces else [])


@pytest.mark.parametrize(
    ("text", "tokens", "code", "ends"),
    [
        ("One. Two.\n\n", SHORTEST, False, True),
        ("One. Two.\n", SHORTEST, False, False),
        ("One. Two.\n", LONGEST, False, True),
        ("One. Two.", LONGEST, False, True),
        ("One. Two", LONGEST, False, False),
        ("One. Two", MOST, False, True),
        ("```\nx = 1\n\n", SHORTEST, False, False),
        ("```\nx = 1\n```\n", SHORTEST, False, True),
        ("x = 1\n```\n", SHORTEST, True, True),
        ("x = 1\n\n", SHORTEST, True, False),
        ("x = 1\n", LONGEST, True, True),
        ("x = 1.", LONGEST, True, False),
    ],
)
def test_a_passage_ends_at_a_paragraph_or_a_closed_block(
    text: str, tokens: int, code: bool, ends: bool
) -> None:
    assert ends_passage(text, tokens, code=code) is ends


def test_a_block_of_code_is_followed_through_passages() -> None:
    assert in_code("a\n```py\nb")
    assert not in_code("b\n```\nc", code=True)
    assert not in_code("a `b` c")


@pytest.mark.parametrize(
    ("reply", "stand", "replacement"),
    [
        ('{"stand": 3, "replacement": null}', 3, None),
        ('```json\n{"stand": 1, "replacement": "They are six."}\n```', 1, " They are six.\n"),
        ('{"stand": 2, "replacement": "return y"}', 2, "    return y"),
        ('{"stand": 2, "replacement": "  return y"}', 2, "  return y"),
        ('{"stand": 0, "replacement": "Four."}', 0, "Four."),
        ('{"stand": 1, "replacement": "[2] They are six."}', 1, " They are six.\n"),
        ('{"stand": 0, "replacement": "[2] is four."}', 0, "[2] is four."),
    ],
)
def test_a_replacement_keeps_the_blanks_around_what_it_replaces(
    reply: str, stand: int, replacement: str | None
) -> None:
    verdict = verdict_of(reply, SENTENCES)
    assert (verdict.stand, verdict.replacement) == (stand, replacement)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "All of it stands.",
        '{"stand": 1',
        '{"stand": 3, "replacement": "Six."}',
        '{"stand": 2, "replacement": null}',
        '{"stand": 4, "replacement": null}',
        '{"stand": -1, "replacement": "Six."}',
        '{"stand": 1.5, "replacement": "Six."}',
        '{"stand": "1", "replacement": "Six."}',
        '{"stand": 1, "replacement": " "}',
        '{"stand": 0, "replacement": "Two and two are four. "}',
        '{"stand": 0, "replacement": "[1] Two and two are four."}',
        '{"stand": 1, "replacement": "a\\u0000b"}',
        '{"stand": 1, "replacement": "Two and two are four. Three and three are six."}',
        '{"stand": 3, "replacement": null, "url": "http://host.example"}',
        '{"stand": 2, "stand": 1, "replacement": "They are six."}',
        '{"stand": 1, "replacement": "They are six.", "replacement": "They are ten."}',
        json.dumps({"stand": 0, "replacement": "long " * 1000}),
        "[" * 100_000,
    ],
)
def test_what_contradicts_itself_is_no_verdict(reply: str) -> None:
    with pytest.raises(NothingUsable):
        verdict_of(reply, SENTENCES)


@given(st.text() | st.builds(json.dumps, st.dictionaries(
    st.sampled_from(["stand", "replacement"]), st.none() | st.integers() | st.text(max_size=30)
)))  # fmt: skip
def test_any_reply_is_a_verdict_or_none(reply: str) -> None:
    try:
        verdict = verdict_of(reply, SENTENCES)
    except NothingUsable:
        return
    assert 0 <= verdict.stand <= len(SENTENCES)
    assert (verdict.replacement is None) == (verdict.stand == len(SENTENCES))


def test_of_the_next_question_the_beginning_is_the_same() -> None:
    conversation = [Message("user", "What is it?")]
    first = question(conversation, "", ["One.", " Two."])
    later = question(conversation, "One. Two.", [" Three."])
    assert first[0] == later[0]
    common = later[1].content.index("One.")
    assert first[1].content[:common] == later[1].content[:common]
    assert "[2]  Two." in first[1].content
