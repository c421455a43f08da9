"""Answers with a response format: what is written, and what becomes of the cloud's completions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given

from edgewise.edge.base import Floats
from edgewise.errors import UsageError
from edgewise.events import Consult, Token
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant, Random
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, Script, ScriptedEdge, noise, replying
from tests.doubles.completing import completing
from tests.doubles.wrapped_cloud import WordAdapter

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


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, Any] = {
    "deep": deep(40),
    "too deep, and a recursion limit": deep(900),
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


OWN = ByteTokenizer("<other>")
WORD = {"type": "string", "pattern": "^[a-m ]{1,12}$"}


def decoder(edge: str, cloud: str, speculate: int) -> Decoder:
    asked = ScriptedCloud(replying(cloud, prompt=PROMPT), tokenizer=OWN)
    return Decoder(
        ScriptedEdge(replying(edge, prompt=PROMPT), tokenizer=TOKENIZER),
        router=Constant(1.0),
        policy=Policy(speculate=speculate),
        cloud=WordAdapter(asked, own=OWN, edge=TOKENIZER),
    )


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_word_is_cut_where_it_breaks_the_form(speculate: int) -> None:
    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=WORD))
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
    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=WORD))
    made = decoder('"abc"', '"xyz"', speculate)
    answer = made.generate(IDS, grammar=grammar, max_tokens=40)
    assert answer.text == '"abc"'
    assert answer.tokens[1].reason == "grammar"
    assert answer.usage.wasted_tokens == len("xyz")


leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
        st.integers(-20, 20),
        st.integers(0, 99),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 5)),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}é?$"}),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from(["x", "xy", "é", 1, 12, None, True]), min_size=1, unique=True),
    ),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "ab", "b", "ü"]), inner, max_size=3)
    return st.one_of(
        st.builds(
            lambda items, most: {"type": "array", "items": items, "maxItems": most},
            inner,
            st.integers(0, 3),
        ),
        st.builds(
            lambda found, required: {
                "type": "object",
                "properties": found,
                "required": list(found)[:required],
                "additionalProperties": False,
            },
            properties,
            st.integers(0, 3),
        ),
        st.builds(lambda found: {"anyOf": found}, st.lists(inner, min_size=1, max_size=2)),
    )


schemas = st.recursive(leaves, nested, max_leaves=5)


def restless(seed: int) -> Script:
    """Random logits; what ends a string, or an answer, comes a little more often."""
    script = noise(seed)

    def written(ids: Sequence[int]) -> Floats:
        logits = script(ids)
        logits[[ord('"'), ord("}"), ord("]"), EOS]] += 6.0
        return logits

    return written


def told(answer: Answer) -> list[object]:
    """What must not depend on speculation."""
    tokens = [(t.id, t.text, t.source, t.reason, t.logprob) for t in answer.tokens]
    counts = answer.usage
    return [answer.finish_reason, tokens, counts.cloud_tokens, counts.correction_tokens]


@given(
    schema=schemas,
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.5, 0.9]),
    span=st.integers(1, 6),
    speculate=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 1.0]),
    share=st.sampled_from([None, 0.3, 1.0]),
)
def test_an_answer_is_json_of_its_schema(
    schema: Mapping[str, Any],
    seed: int,
    agreement: float,
    span: int,
    speculate: int,
    temperature: float,
    share: float | None,
) -> None:
    """By edge and cloud, waiting and speculating."""
    own, other = restless(seed), noise(seed + 1)

    def cloud(ids: Sequence[int]) -> Floats:
        differs = hash((seed, len(ids), ids[-1])) % 100 >= 100 * agreement
        return other(ids) if differs else own(ids)

    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=schema))
    answers: list[Answer] = []
    for ahead in (0, speculate):
        policy = Policy(threshold=0.4, cloud_share=share, span=span, speculate=ahead)
        edge = ScriptedEdge(own, tokenizer=TOKENIZER)
        made = Decoder(edge, router=Random(0), policy=policy, cloud=ScriptedCloud(cloud))
        options = {"sampling": Sampling(temperature=temperature, seed=seed), "max_tokens": 300}
        answers.append(made.generate(IDS, grammar=grammar, **options))
    waiting, ahead_answer = answers
    assert told(waiting) == told(ahead_answer)
    if waiting.finish_reason == "stop":
        jsonschema.validate(json.loads(waiting.text), schema)
    else:
        assert len(waiting.tokens) == 300
