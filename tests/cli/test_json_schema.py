"""`edgewise run --json-schema FILE`."""

import json
from pathlib import Path

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


def test_the_answer_is_json_of_the_schema(edgewise: Edgewise, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    asked = ("run", "Tell me about copper.", "--threads", "1", "--json-schema", str(path))
    found = json.loads(edgewise(*asked).out)
    jsonschema.validate(found, SCHEMA)
    told = edgewise.json(*asked)
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
def test_a_file_that_is_no_schema(
    edgewise: Edgewise, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)
    asked = ("run", "Hi", "--cloud", "none", "--threads", "1", "--json-schema", str(path))
    assert said in edgewise.refusal(*asked)
