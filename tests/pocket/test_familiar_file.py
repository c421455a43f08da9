"""What the bundled notice is made of: the wordings and words of the training text."""

import gzip
import json
from pathlib import Path

from edgewise.prompts.familiar import START, familiar
from pocket import familiar as made
from tests.pocket.test_questions import CHAINS, FACTS


def test_words_of_slots_are_told_from_those_of_wordings(tmp_path: Path) -> None:
    found = made.familiar(FACTS, CHAINS, seed=1, documents=2_000)
    assert "realm" in found["slots"]
    assert {"What", "kind", "Choices", START} <= set(found["words"])
    assert {f"{START} Question", "Question :", "* ?"} <= set(found["pairs"])
    assert "realm" not in found["words"]
    made.write(tmp_path / "a.gz", found)
    made.write(tmp_path / "b.gz", found)
    data = (tmp_path / "a.gz").read_bytes()
    assert data == (tmp_path / "b.gz").read_bytes()
    assert json.loads(gzip.decompress(data)) == found


def test_the_bundled_one_knows_the_wordings() -> None:
    known = familiar()
    assert {"* *", "capital of", "of *"} <= known.pairs
    assert len(known.slots) > 2_000
