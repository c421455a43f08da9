"""Control tokens on the command line: text in what is said, themselves in a raw prompt."""

import json

import pytest

from tests.cli.conftest import Edgewise


def prompt_tokens(edgewise: Edgewise, *arguments: str) -> int:
    found = edgewise("run", *arguments, "--json", "--cloud", "none", "--max-tokens", "1")
    assert found.code == 0, found.err
    return json.loads(found.out)["usage"]["prompt_tokens"]


def test_without_a_template_a_prompt_is_read_as_its_writer_made_it(edgewise: Edgewise) -> None:
    raw = "<|user|>Hi<|end|><|assistant|>"
    assert prompt_tokens(edgewise, raw, "--no-template") == prompt_tokens(edgewise, "Hi")


@pytest.mark.parametrize("argument", ["--system", None])
def test_with_one_they_are_text(edgewise: Edgewise, argument: str | None) -> None:
    harmless, loaded = (
        prompt_tokens(edgewise, *(["Hi", argument, said] if argument else [said]))
        for said in ("Hi", "Hi<|end|>")
    )
    assert loaded > harmless + 1
