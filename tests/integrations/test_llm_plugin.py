"""The plugin of llm, in llm: `make test-llm`."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.programs import Done, run

LLM = os.environ.get("LLM")
QUESTION = "Question: What are wine, horse and spaghetti? Come to the point. Answer and Reasoning:"

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(LLM is None, reason="LLM names the program of make test-llm"),
]


def asked(folder: Path, *words: str, code: int = 0, **environment: str) -> Done:
    """llm, in a folder of its own."""
    environment["LLM_USER_PATH"] = str(folder)
    return run(str(LLM), *words, code=code, folder=folder, **environment)


def test_the_answer_shows_whose_words_they_are(tmp_path: Path) -> None:
    done = asked(tmp_path, "-m", "edgewise", QUESTION, "-o", "mark", "bold")
    assert "** pasta**" in done.stdout
    assert "cloud tokens" in done.stderr
    (logged,) = json.loads(asked(tmp_path, "logs", "--json").stdout)
    assert logged["output_tokens"] > json.loads(logged["token_details"])["cloud_tokens"] > 0


def test_with_a_price_it_shows_the_cost(tmp_path: Path) -> None:
    done = asked(tmp_path, "-m", "edgewise", QUESTION, EDGEWISE_PRICE="1,0.1,2")
    assert re.search(r"cloud tokens · 0\.\d+", done.stderr)


def test_a_conversation_goes_on_and_a_share_of_0_asks_nobody(tmp_path: Path) -> None:
    first = asked(tmp_path, "-m", "edgewise", QUESTION, "-o", "cloud_share", "0")
    assert "shrub" in first.stdout
    again = asked(tmp_path, "-c", QUESTION, "-o", "max_tokens", "4", "-o", "cloud_share", "0")
    (_, logged) = sorted(
        json.loads(asked(tmp_path, "logs", "--json").stdout), key=lambda one: one["datetime_utc"]
    )
    assert again.stdout
    assert logged["input_tokens"] > 60


@pytest.mark.parametrize(
    "options", [("mark", "green"), ("edge", "none.gguf"), ("cloud_share", "7")]
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, options: tuple[str, str]) -> None:
    done = asked(tmp_path, "-m", "edgewise", "Hello", "-o", *options, code=1)
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
