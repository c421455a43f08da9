"""What becomes of a cloud's completion where the answer has a form, token by token."""

import json
from typing import Any

import pytest

from edgewise.errors import UsageError
from edgewise.events import Consult
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, ScriptedEdge, noise, replying
from tests.doubles.completing import completing

pytest.importorskip("llguidance")

PROMPT = "JSON: "
IDS = list(PROMPT.encode())
SCHEMA = {
    "type": "object",
    "properties": {"word": {"enum": ["cat", "cow", "dog"]}},
    "required": ["word"],
    "additionalProperties": False,
}
TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def grammar() -> Any:
    return grammar_of(TOKENIZER, ResponseFormat(schema=SCHEMA))


def answered(
    grammar: Any, edge: str, cloud: str | None, *, max_tokens: int = 64, **policy: Any
) -> tuple[Answer, list[Consult], ScriptedCloud]:
    asked = ScriptedCloud(completing(cloud or "", prompt=PROMPT))
    decoder = Decoder(
        ScriptedEdge(replying(edge, prompt=PROMPT), tokenizer=TOKENIZER),
        router=Constant(1.0 if cloud is not None else 0.0),
        policy=Policy(**{"threshold": 0.5, **policy}),
        cloud=asked,
    )
    with decoder.stream(IDS, grammar=grammar, max_tokens=max_tokens) as stream:
        events = list(stream)
    return collect(iter(events)), [one for one in events if isinstance(one, Consult)], asked


def reasons(answer: Answer) -> str:
    """One letter a token: forced, critical, span, grammar, below the threshold."""
    return "".join(token.reason[0] for token in answer.tokens)


def test_what_the_form_leaves_no_choice_about_asks_nobody(grammar: Any) -> None:
    text = '{"word":"cow"}'
    answer, consults, cloud = answered(grammar, text, text)
    assert answer.text == text
    assert answer.finish_reason == "stop"
    # Blanks may stand between the parts; which word it is, c or d, and then a or o, is a choice.
    assert {ids[-1:] for ids, _ in cloud.asks} == {
        tuple(text[at : at + 1].encode()) for at in (0, 6, 7, 8, 9, 12)
    }
    assert [token.reason for token in answer.tokens].count("forced") == len(text) + 1 - len(
        consults
    )
    assert answer.tokens[-1].id == EOS


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_completion_that_breaks_the_form_is_refused(grammar: Any, speculate: int) -> None:
    """At every position: the cloud writes what it likes, and the edge's own token stands."""
    answer, consults, _ = answered(grammar, '{"word":"dog"}', "no", speculate=speculate)
    assert answer.text == '{"word":"dog"}'
    assert {one.outcome for one in consults} == {"grammar"}
    assert set(reasons(answer)) == {"f", "g"}
    usage = answer.usage
    assert usage.failed_calls == usage.cloud_calls == usage.wasted_tokens == len(consults) > 0
    assert usage.cloud_tokens == usage.correction_tokens == 0
    assert usage.cloud_share == pytest.approx(len(consults) / len(answer.tokens))


def test_a_completion_is_cut_where_it_breaks_the_form(grammar: Any) -> None:
    answer, consults, _ = answered(grammar, '{"word":"dog"}', '{"word":"cow", and more', span=16)
    assert answer.text.startswith('{"word":"cow"')
    json.loads(answer.text)
    written = [token for token in answer.tokens if token.source == "cloud"]
    assert "".join(token.text for token in written) == '"word":"cow"'
    assert consults[0].outcome == "answered"
    assert answer.usage.wasted_tokens > 0
    assert answer.usage.cloud_tokens == len(written)


def test_the_cloud_ends_what_is_complete() -> None:
    grammar = grammar_of(TOKENIZER, ResponseFormat(schema={"type": "integer"}))
    answer, _, _ = answered(grammar, "123456", "12", span=4)
    assert answer.text == "12"
    assert answer.tokens[-1].source == "cloud"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, Any] = {
    "deep": nested(40),
    "too deep, and a recursion limit": nested(900),
    "a huge text": {"const": "x" * 200_000},
    "many values": {"enum": list(range(30_000))},
    "many keys": {"properties": {f"p{number}": {} for number in range(3000)}},
    "keys without an order": {
        "type": "object",
        "properties": {f"p{number}": {} for number in range(999)},
    },
    "itself": {"$ref": "#"},
    "itself and itself": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "elsewhere": {"$ref": "http://127.0.0.1:9/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
    "many repeats": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "many ways": {"type": "string", "pattern": "^(a?){100}a{100}$"},
    "many groups": {"type": "string", "pattern": "(" * 20_000 + "a" + ")" * 20_000},
    "nothing fits": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "not supported": {"not": {"type": "string"}},
    "no type": {"type": "text"},
    "no schema": {"type": 5, "properties": [], "required": {}},
    "no JSON": {"const": object()},
    "half a character": {"const": "\ud800"},
    "lenient": {"x-guidance": {"lenient": True}, "not": {}},
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_schema_is_refused_or_harmless(which: str) -> None:
    """In a sentence: at once, or where it is found out, which ends the answer."""
    edge = ScriptedEdge(noise(1), tokenizer=TOKENIZER)
    decoder = Decoder(edge, router=Constant(0.0), policy=Policy())

    def answer() -> None:
        grammar = grammar_of(TOKENIZER, ResponseFormat(schema=HOSTILE[which]))
        decoder.generate(IDS, grammar=grammar, max_tokens=20)

    if which == "deep":
        answer()
        return
    with pytest.raises(UsageError) as caught:
        answer()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert edge.sessions == 0
