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
    done = edgewise(*asked)
    assert done.code == 0
    jsonschema.validate(json.loads(done.out), SCHEMA)
    told = json.loads(edgewise(*asked, "--json").out)
    assert json.loads(told["text"]) == json.loads(done.out)
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
    done = edgewise("run", "Hi", "--cloud", "none", "--threads", "1", "--json-schema", str(path))
    assert (done.code, done.out) == (2, "")
    told = " ".join(done.err.split())
    assert said in told
    assert "Traceback" not in told
