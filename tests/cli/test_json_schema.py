"""`edgewise run --json-schema FILE`."""

import json

import jsonschema
import pytest

from tests.cli.conftest import Edgewise

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"metal": {"type": "string", "maxLength": 12}, "is_one": {"type": "boolean"}},
    "required": ["metal", "is_one"],
    "additionalProperties": False,
}


FLAGS = ("--threads", "1", "--json-schema", "schema.json")


def test_the_answer_is_json_of_the_schema(edgewise: Edgewise) -> None:
    edgewise.write_lines("schema.json", SCHEMA)
    found = json.loads(edgewise("run", "Tell me about copper.", *FLAGS).out)
    jsonschema.validate(found, SCHEMA)
    told = edgewise.json("run", "Tell me about copper.", *FLAGS)
    assert json.loads(told["text"]) == found
    assert "forced" in {token["reason"] for token in told["tokens"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"{", "JSON object"),
        (b"[1]", "JSON object"),
        (b"\xff", "JSON object"),
        (b"[" * 5000, "JSON object"),
        (b" " * (1 << 18), "more than 131072 bytes"),
        (b'{"not": {}}', '["not"]'),
    ],
    ids=["missing", "cut", "a list", "no text", "deep", "large", "not supported"],
)
def test_a_file_that_is_no_schema(edgewise: Edgewise, content: bytes | None, said: str) -> None:
    if content is not None:
        edgewise.write("schema.json", content)
    assert said in edgewise.refusal("run", "Hi", "--cloud", "none", *FLAGS)
