"""Answers with a response format: what is written, and what becomes of the cloud's completions.

Schemas: closed where nothing says that they are open; refused where they are too much work.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given

from edgewise.edge.base import Floats
from edgewise.errors import UsageError
from edgewise.events import Consult, Token
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.grammar.schema import MAX_KEY_PATTERNS, MAX_MULTIPLE
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Tool
from edgewise.routers.untrained import Constant, Random
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, Script, ScriptedEdge, noise, replying
from tests.doubles.completing import completing
from tests.doubles.wrapped_cloud import WordAdapter
from tests.tool_models import ToolTokenizer

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


def test_what_the_form_leaves_no_choice_about_asks_nobody(grammar: Any) -> None:
    text = '{"word":"cow"}'
    answer, consults, cloud = answered(grammar, text, text)
    assert (answer.text, answer.finish_reason) == (text, "stop")
    # Blanks may stand between the parts; which word it is, c or d, and then a or o, is a choice.
    asked = {bytes(ids[-1:]).decode() for ids, _ in cloud.asks}
    assert asked == {text[at] for at in (0, 6, 7, 8, 9, 12)}
    forced = [token for token in answer.tokens if token.reason == "forced"]
    assert len(forced) == len(text) + 1 - len(consults)
    assert answer.tokens[-1].id == EOS


@pytest.mark.parametrize("speculate", [0, 8])
def test_a_completion_that_breaks_the_form_is_refused(grammar: Any, speculate: int) -> None:
    """At every position: the cloud writes what it likes, and the edge's own token stands."""
    answer, consults, _ = answered(grammar, '{"word":"dog"}', "no", speculate=speculate)
    assert answer.text == '{"word":"dog"}'
    assert {one.outcome for one in consults} == {"grammar"}
    assert {token.reason for token in answer.tokens} == {"forced", "grammar"}
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
    # And the cloud ends what is complete.
    integer = grammar_of(TOKENIZER, ResponseFormat(schema={"type": "integer"}))
    answer, _, _ = answered(integer, "123456", "12", span=4)
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
    "many keys": {"properties": {f"p{n}": {} for n in range(3000)}},
    "keys without an order": {"type": "object", "properties": {f"p{n}": {} for n in range(999)}},
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
    "no patterns of keys": {"type": "object", "patternProperties": True},
    "no JSON": {"const": object()},
    "half a character": {"const": "\ud800"},
    "lenient": {"x-guidance": {"lenient": True}, "not": {}},
}


@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_schema_is_refused_or_harmless(which: str) -> None:
    """In a sentence: at once, or where it is found out, which ends the answer."""
    edge = ScriptedEdge(noise(1), tokenizer=TOKENIZER)
    decoder = Decoder(edge, router=Constant(0.0), policy=Policy())
    harmless = which == "deep"
    with nullcontext() if harmless else pytest.raises(UsageError) as caught:
        grammar = grammar_of(TOKENIZER, ResponseFormat(schema=HOSTILE[which]))
        decoder.generate(IDS, grammar=grammar, max_tokens=20)
    if caught:
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
    reasons = " ".join(token.reason for token in tokens[:8])
    assert reasons == "forced critical span span mid_word mid_word mid_word critical"
    assert [token.source for token in tokens[1:4]] == ["cloud"] * 3
    first = next(event for event in events if isinstance(event, Consult))
    assert (first.outcome, first.answered) == ("answered", 6)
    # A word that does not begin well is refused.
    answer = decoder('"abc"', '"xyz"', speculate).generate(IDS, grammar=grammar, max_tokens=40)
    assert answer.text == '"abc"'
    assert answer.tokens[1].reason == "grammar"
    assert answer.usage.wasted_tokens == len("xyz")


leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}é?$"}),
    st.tuples(st.integers(-20, 20), st.integers(0, 99)).map(
        lambda of: {"type": "integer", "minimum": of[0], "maximum": sum(of)}
    ),
    st.integers(0, 5).map(lambda most: {"type": "string", "maxLength": most}),
    st.lists(st.sampled_from(["x", "xy", "é", 1, 12, None, True]), min_size=1, unique=True).map(
        lambda values: {"enum": values}
    ),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(["a", "ab", "b", "ü"]), inner, max_size=3)
    return st.one_of(
        st.tuples(inner, st.integers(0, 3)).map(
            lambda of: {"type": "array", "items": of[0], "maxItems": of[1]}
        ),
        st.tuples(properties, st.integers(0, 3)).map(
            lambda of: {
                "type": "object",
                "properties": of[0],
                "required": list(of[0])[: of[1]],
                "additionalProperties": False,
            }
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda found: {"anyOf": found}),
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


A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}}


def allows(schema: dict[str, Any], text: str) -> bool:
    found = grammar_of(TOKENIZER, ResponseFormat(schema=schema)).constraint(0)
    ids = [*text.encode(), min(TOKENIZER.eos_ids)]
    return found.fitting([], ids) == len(ids)


@pytest.mark.parametrize(
    "schema",
    [
        A,
        {"$ref": "#/$defs/a", "$defs": {"a": A}},
        {"anyOf": [A, {"type": "null"}]},
        {"$ref": "#/definitions/a", "definitions": {"a": A}, "description": "It."},
    ],
)
def test_an_object_has_the_keys_that_it_names(schema: dict[str, Any]) -> None:
    assert allows(schema, '{"a": 1}')
    assert allows(schema, "{}")
    assert not allows(schema, '{"a": 1, "c": 2}')
    # So it is at every depth.
    deep = {"type": "array", "items": {"type": "object", "properties": {"in": schema}}}
    assert "$ref" in schema or not allows(deep, '[{"in": {"c": 1}}]')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (A | {"additionalProperties": True}, '{"c": 2}'),
        (A | {"additionalProperties": {"type": "null"}}, '{"a": 1, "c": null}'),
        (A | {"required": ["c"]}, '{"c": 2}'),
        ({"type": "object"}, '{"c": 2}'),
        ({"allOf": [A | {"required": ["a"]}, B]}, '{"a": 1, "b": 2}'),
        (A | {"anyOf": [B | {"required": ["b"]}]}, '{"a": 1, "b": 2}'),
        # Digits that are of no number are as many as the schema has.
        ({"type": "string"}, f'"{"3" * 99}"'),
        ({"type": "string", "pattern": "^[0-9]{50}$"}, f'"{"3" * 50}"'),
        ({}, f'["{"3" * 99}", "e333", 1e33]'),
    ],
)
def test_what_is_open_stays_open(schema: dict[str, Any], text: str) -> None:
    assert allows(schema, text)


INTEGER = {"type": "integer"}
FRACTIONS = ("3", "3.3", "-33e3", "0.3e-3")


@pytest.mark.parametrize(
    ("schema", "head", "texts"),
    [
        (INTEGER, "", "3"),
        (INTEGER | {"minimum": 7}, "", "3"),
        (A | {"required": ["a"]}, '{"a": ', "3"),
        ({"type": "number"}, "", FRACTIONS),
        ({}, "", FRACTIONS),
        ({"type": "array"}, "[", FRACTIONS),
        ({"type": "object"}, '{"a": ', FRACTIONS),
    ],
)
def test_a_number_ends(schema: dict[str, Any], head: str, texts: Sequence[str]) -> None:
    """Whatever the model wants to write, and the cloud: a small one repeats a digit for ever."""
    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=schema)).constraint(0)
    for text in texts:
        ids = [*(head + text).encode()]
        assert grammar.fitting([], ids) == len(ids)
        before = len(ids)
        while grammar.allowed(ids).mask[ord("3")]:
            ids.append(ord("3"))
            assert len(ids) < before + 40
        assert grammar.fitting(ids[:before], [ord("3")] * 100) == len(ids) - before
        assert grammar.allowed(ids).mask.any()


def test_a_tool_without_parameters_is_given_none() -> None:
    tokenizer = ToolTokenizer()

    def fits(tool: Tool, arguments: str) -> bool:
        form = ResponseFormat(tools=(tool,), required=True)
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        ids = [*text.encode(), min(tokenizer.eos_ids)]
        return grammar_of(tokenizer, form).constraint(0).fitting([], ids) == len(ids)

    assert fits(Tool("f"), "{}")
    assert not fits(Tool("f"), '{"a": 1}')
    assert fits(Tool("f", parameters={"type": "object"}), '{"a": 1}')


TEXT = {"type": "string", "pattern": "^ab*$"}
NULL = {"type": "null"}


def chained(link: Callable[[str], Any], end: Any = TEXT) -> dict[str, Any]:
    """Twenty-five definitions, each made of the next."""
    links = {f"a{number}": link(f"#/$defs/a{number + 1}") for number in range(25)}
    return {"$ref": "#/$defs/a0", "$defs": links | {"a25": end}}


def both(made: Callable[[str], Any]) -> Callable[[str], Any]:
    """An object with two values of it."""
    return lambda ref: {"type": "object", "properties": {"x": made(ref), "y": made(ref)}}


def patterns(count: int) -> list[Any]:
    return [{"type": "string", "pattern": f"^(.*a.{{{n + 5}}}b)*$"} for n in range(count)]


def keys(count: int) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^w{n}x.*$": {} for n in range(count)}}


HEAVY: dict[str, Any] = {
    "many patterns": {"allOf": patterns(30)},
    "many patterns in the middle of an answer": A
    | {"properties": {"a": {"allOf": patterns(30)}}, "required": ["a"]},
    "many patterns by refs": {
        "$defs": {f"p{n}": one for n, one in enumerate(patterns(30))},
        "allOf": [{"$ref": f"#/$defs/p{n}"} for n in range(30)],
    },
    "a large multiple": {"type": "integer", "multipleOf": 99_999_989},
    "a small one": {"type": "number", "multipleOf": 0.0099999989},
    "many patterns of a key and of all keys": {
        "allOf": [
            {"type": "object", "properties": {"a": {"allOf": patterns(2)}}},
            {"type": "object", "additionalProperties": {"allOf": patterns(2)}},
        ]
    },
    "many patterns in lists": {"allOf": [{"type": "array", "items": one} for one in patterns(9)]},
    "multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (7919, 7907, 7901)]},
    "two of each": chained(lambda ref: {"allOf": [{"$ref": ref}, {"$ref": ref}]}),
    "two of each, and more": chained(both(lambda ref: {"$ref": ref, "minimum": 1})),
    "two of each, or nothing": chained(
        both(lambda ref: {"anyOf": [{"$ref": ref}, NULL], "minLength": 1})
    ),
    "patterns of keys": keys(900),
    "patterns of keys in parts": {"allOf": [keys(90), keys(80)]},
    "combined by a name": {
        "allOf": [{"$ref": "#x"}, {"maxLength": 9}],
        "$defs": {"a": {"$anchor": "x"}},
    },
    "a chain of refs": {
        "$ref": "#/$defs/a0",
        "maxLength": 9,
        "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}", "minLength": 1} for n in range(3000)},
    },
}


@pytest.mark.parametrize("which", HEAVY)
def test_what_would_take_minutes_is_refused_before_it_is_compiled(which: str) -> None:
    with pytest.raises(UsageError, match=r"^The schema [^\n]*$"):
        grammar_of(TOKENIZER, ResponseFormat(schema=HEAVY[which]))


def test_so_are_the_parameters_of_tools() -> None:
    heavy = {"type": "object", "properties": {"a": {"allOf": patterns(30)}}}
    with pytest.raises(UsageError, match="'a'"):
        grammar_of(ToolTokenizer(), ResponseFormat(tools=(Tool("a", "", heavy),)))
    # One by one they would do.
    some = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 9001}}}
    many = tuple(Tool(f"t{number}", "", some) for number in range(20))
    with pytest.raises(UsageError, match="multipleOf"):
        grammar_of(ToolTokenizer(), ResponseFormat(tools=many))
    grammar_of(ToolTokenizer(), ResponseFormat(tools=many[:2]))


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", "default": None}}}
USUAL: dict[str, Any] = {
    # As pydantic has written what may be left out, before and now.
    "one part": chained(both(lambda ref: {"allOf": [{"$ref": ref}], "default": None})),
    "a note": chained(both(lambda ref: {"$ref": ref, "description": "one of them"})),
    "or nothing": chained(both(lambda ref: {"anyOf": [{"$ref": ref}, NULL], "default": None})),
    "itself": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "a list of itself, combined": {
        "allOf": [
            {"$ref": "#/$defs/named"},
            {"type": "object", "properties": {"inner": {"type": "array", "items": NODE}}},
        ],
        "$defs": {"named": {"type": "object", "properties": {"id": TEXT}}, "node": NODE},
    },
    "parts with patterns of their own": {
        "allOf": [
            {"type": "object", "properties": {f"a{n}": {"type": "string", "format": "date-time"}}}
            for n in range(20)
        ]
    },
    "a pattern and a length": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 20},
    "many formats": {"type": "object", "properties": {f"a{n}": TEXT for n in range(200)}},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0},
    "thousands": {"type": "integer", "multipleOf": 1_000_000_000},
    "the largest multiple": {"type": "integer", "multipleOf": MAX_MULTIPLE // 64, "minimum": 0},
    "patterns of keys": keys(MAX_KEY_PATTERNS // 2),
}


@pytest.mark.parametrize("which", USUAL)
def test_what_people_write_is_compiled(which: str) -> None:
    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=USUAL[which]))
    assert grammar.constraint(0).allowed(()).mask.any()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**30, 10**400, -(10**400)])
@pytest.mark.parametrize("name", ["multipleOf", "minimum", "const", "maxLength"])
def test_numbers_that_json_does_not_have_are_refused_or_held_to(name: str, number: float) -> None:
    with suppress(UsageError):
        grammar_of(TOKENIZER, ResponseFormat(schema={"type": ["integer", "string"], name: number}))
