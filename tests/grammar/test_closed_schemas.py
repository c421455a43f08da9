"""Objects have the keys that they name, where closing them leaves a schema what it is."""

from typing import Any

import pytest

from edgewise.grammar.response_format import ResponseFormat, grammar_of
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
