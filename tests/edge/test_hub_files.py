"""Small files of a hub model's folder as Python's own JSON writes them."""

from pathlib import Path

import pytest

from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.errors import ModelError
from tests import models
from tests.hub_files import write_tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model", models.byte_level())


def test_numbers_that_json_has_not(folder: Path) -> None:
    (folder / "config.json").write_text('{"time_step_limit": [0.0, Infinity], "eos_token_id": 65}')
    assert 65 in HubTokenizer(folder).eos_ids


@pytest.mark.parametrize("data", [b'{"time": Infinity', b"NaN", b'{"eos_token_id": "\xff Infinity'])
def test_what_is_no_json_all_the_same(folder: Path, data: bytes) -> None:
    (folder / "config.json").write_bytes(data)
    with pytest.raises(ModelError, match="not what"):
        HubTokenizer(folder)
