"""Schemas: closed where nothing says that they are open; refused where they are too much work."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from edgewise.errors import UsageError
from edgewise.grammar.response_format import ResponseFormat, grammar_of
from edgewise.grammar.schema import MAX_KEY_PATTERNS, MAX_MULTIPLE
from edgewise.prompts import Tool
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.tool_models import ToolTokenizer

pytest.importorskip("llguidance")

TOKENIZER = ByteTokenizer()
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
    assert "$defs" in schema or "definitions" in schema or not allows(deep, '[{"in": {"c": 1}}]')


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (A | {"additionalProperties": True}, '{"c": 2}'),
        (A | {"additionalProperties": {"type": "null"}}, '{"a": 1, "c": null}'),
        (A | {"required": ["c"]}, '{"c": 2}'),
        ({"type": "object"}, '{"c": 2}'),
        ({"allOf": [A | {"required": ["a"]}, B]}, '{"a": 1, "b": 2}'),
        (A | {"anyOf": [B | {"required": ["b"]}]}, '{"a": 1, "b": 2}'),
    ],
)
def test_what_is_open_stays_open(schema: dict[str, Any], text: str) -> None:
    assert allows(schema, text)


NUMBERS: dict[str, dict[str, Any]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "at least": {"type": "integer", "minimum": 7},
    "anything": {},
    "a list of any": {"type": "array"},
    "in an object": A | {"required": ["a"]},
    "in a JSON object": {"type": "object"},
}


@pytest.mark.parametrize(
    ("which", "text"),
    [
        *((which, "3") for which in NUMBERS),
        *(
            (which, text)
            for which in ("number", "anything", "a list of any", "in a JSON object")
            for text in ("3.3", "-33e3", "0.3e-3")
        ),
    ],
)
def test_a_number_ends(which: str, text: str) -> None:
    """Whatever the model wants to write, and the cloud: a small one repeats a digit for ever."""
    grammar = grammar_of(TOKENIZER, ResponseFormat(schema=NUMBERS[which])).constraint(0)
    head = {"array": "[", "object": '{"a": '}.get(NUMBERS[which].get("type", ""), "")
    ids = [*(head + text).encode()]
    assert grammar.fitting([], ids) == len(ids)
    before = len(ids)
    while grammar.allowed(ids).mask[ord("3")]:
        ids.append(ord("3"))
        assert len(ids) < before + 40
    assert grammar.fitting(ids[:before], [ord("3")] * 100) == len(ids) - before
    assert grammar.allowed(ids).mask.any()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, f'"{"3" * 99}"'),
        ({"type": "string", "pattern": "^[0-9]{50}$"}, f'"{"3" * 50}"'),
        ({}, f'["{"3" * 99}", "e333", 1e33]'),
    ],
)
def test_other_digits_are_as_many_as_the_schema_has(schema: dict[str, Any], text: str) -> None:
    assert allows(schema, text)


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
    "many patterns in the middle of an answer": {
        "type": "object",
        "properties": {"a": {"allOf": patterns(30)}},
        "required": ["a"],
    },
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
