"""A cloud with another vocabulary, and an answer with a form: a word is taken as far as it fits."""

import json

import pytest

from edgewise.events import Consult, Token
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from tests.doubles.around import WordBridge

pytest.importorskip("llguidance")

PROMPT = "JSON: "
IDS = list(PROMPT.encode())
EDGE, OWN = ByteTokenizer(), ByteTokenizer("<other>")
SCHEMA = {"type": "string", "pattern": "^[a-m ]{1,12}$"}


def decoder(edge: str, cloud: str, speculate: int) -> Decoder:
    asked = ScriptedCloud(replying(cloud, prompt=PROMPT), tokenizer=OWN)
    return Decoder(
        ScriptedEdge(replying(edge, prompt=PROMPT), tokenizer=EDGE),
        router=Constant(1.0),
        policy=Policy(speculate=speculate),
        cloud=WordBridge(asked, own=OWN, edge=EDGE),
    )


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_word_is_cut_where_it_breaks_the_form(speculate: int) -> None:
    grammar = grammar_of(EDGE, ResponseFormat(schema=SCHEMA))
    made = decoder('"abcdef he"', '"abcxyz ma"', speculate)
    with made.stream(IDS, grammar=grammar, max_tokens=40) as stream:
        events = list(stream)
    tokens = [event for event in events if isinstance(event, Token)]
    text = "".join(token.text for token in tokens)
    assert json.loads(text).startswith("abcdef")
    # Inside of the word nobody is asked again: what was cut is no word's end.
    assert [token.reason for token in tokens[:8]] == [
        *("forced", "critical", "span", "span", "mid_word", "mid_word", "mid_word", "critical")
    ]
    assert [token.source for token in tokens[1:4]] == ["cloud"] * 3
    first = next(event for event in events if isinstance(event, Consult))
    assert (first.outcome, first.answered) == ("answered", 6)


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_word_that_does_not_begin_well_is_refused(speculate: int) -> None:
    grammar = grammar_of(EDGE, ResponseFormat(schema=SCHEMA))
    made = decoder('"abc"', '"xyz"', speculate)
    answer = made.generate(IDS, grammar=grammar, max_tokens=40)
    assert answer.text == '"abc"'
    assert answer.tokens[1].reason == "grammar"
    assert answer.usage.wasted_tokens == len("xyz")
