"""What the commands print when all is well."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cli.render import printable
from tests.cli.conftest import Edgewise

PROMPT = "Spell the word cat."
TOKEN = {"index", "id", "text", "source", "score", "logprob", "seconds", "reason"}
USAGE = {"prompt_tokens", "edge_tokens", "cloud_tokens", "cloud_share", "cloud_calls"}


def answer(edgewise: Edgewise, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    result = edgewise("run", "--json", *arguments, stdin=stdin)
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def ids(found: dict[str, Any]) -> list[int]:
    return [token["id"] for token in found["tokens"]]


def test_json_tells_the_answer_token_by_token(edgewise: Edgewise, tmp_path: Path) -> None:
    found = answer(edgewise, PROMPT, "--trace", "trace.json")
    assert {"text", "finish_reason", "tokens", "usage", "timing"} <= set(found)
    assert found["finish_reason"] in ("stop", "length")
    assert set(found["usage"]) >= USAGE
    assert found["usage"]["edge_tokens"] + found["usage"]["cloud_tokens"] == len(found["tokens"])
    assert 0 < found["timing"]["ttft"] <= found["timing"]["total"]
    assert [token["index"] for token in found["tokens"]] == list(range(len(found["tokens"])))
    assert all(set(token) >= TOKEN for token in found["tokens"])

    events = [event["args"] for event in json.loads((tmp_path / "trace.json").read_text())]
    tokens = [event for event in events if event.get("type") == "token"]
    assert [token["id"] for token in tokens] == ids(found)
    (finished,) = [event for event in events if event.get("type") == "finished"]
    assert "".join(said["text"] for said in [*tokens, finished]) == found["text"] != ""


def test_the_cap_is_never_exceeded(edgewise: Edgewise) -> None:
    eager = ("--router", "constant:1", "--threshold", "0.5", PROMPT)
    uncapped = answer(edgewise, *eager)
    assert uncapped["usage"]["cloud_tokens"] > 1
    for span in ("1", "4"):
        capped = answer(edgewise, *eager, "--max-cloud-tokens", "1", "--span", span)
        sources = [token["source"] for token in capped["tokens"]]
        assert sources.count("cloud") == capped["usage"]["cloud_tokens"] == 1
        assert capped["usage"]["cloud_calls"] == 1
    assert answer(edgewise, *eager, "--max-cloud-tokens", "0")["usage"]["cloud_calls"] == 0


def test_a_seed_reproduces_a_drawn_answer(edgewise: Edgewise, bpe_path: Path) -> None:
    drawn = ("--edge", str(bpe_path), "--temperature", "1", "--max-tokens", "16", "Hello")
    first = answer(edgewise, *drawn, "--seed", "7")
    assert ids(answer(edgewise, *drawn, "--seed", "7")) == ids(first)
    assert ids(answer(edgewise, *drawn, "--seed", "8")) != ids(first)


def test_flags_reach_the_answer(edgewise: Edgewise) -> None:
    whole = answer(edgewise, PROMPT)
    assert ids(answer(edgewise, PROMPT, "--max-tokens", "2")) == ids(whole)[:2]
    stop = whole["text"][3:5]
    cut = answer(edgewise, PROMPT, "--stop", stop)
    assert cut["text"] == whole["text"].partition(stop)[0]
    assert cut["finish_reason"] == "stop"
    bare = answer(edgewise, PROMPT, "--no-template", "--max-tokens", "2")
    more = answer(edgewise, PROMPT, "--system", "Be brief.", "--max-tokens", "2")
    lengths = [found["usage"]["prompt_tokens"] for found in (bare, whole, more)]
    assert lengths == sorted(set(lengths))


def test_plain_output_is_the_text_and_a_summary(edgewise: Edgewise) -> None:
    text = answer(edgewise, PROMPT)["text"]
    result = edgewise("run", PROMPT)
    assert (result.code, result.out) == (0, text + "\n")
    summary = result.err.splitlines()[-1]
    assert re.fullmatch(
        r"\d+ edge \+ \d+ cloud tokens · [\d.]+ s( · .*2 above the share)?", summary
    )
    alone = edgewise("run", PROMPT, "--cloud", "none").err.splitlines()[-1]
    assert re.fullmatch(r"\d+ tokens · \d+ tokens/s", alone)


def test_statistics_are_said_where_asked_for(edgewise: Edgewise) -> None:
    told = edgewise("run", PROMPT, "--stats").err.splitlines()
    plain = edgewise("run", PROMPT).err.splitlines()
    assert len(told) > len(plain)
    usage = answer(edgewise, PROMPT)["usage"]
    assert f"{usage['cloud_calls']} consults" in told[-2]
    assert "vocabulary" in told[-1]


@pytest.mark.parametrize("prompt", ["Tell me about oxygen.", "Why is the sky blue?"])
def test_the_bundled_pair_says_first_that_it_is_a_toy(edgewise: Edgewise, prompt: str) -> None:
    told = edgewise("run", prompt).err
    assert "--edge smollm2" in told.splitlines()[0]
    taught = (
        "Question: What are wine, horse and spaghetti? Come to the point. Answer and Reasoning:"
    )
    assert "smollm2" not in edgewise("run", taught).err


@pytest.mark.parametrize("seed", range(4))
def test_control_characters_do_not_reach_the_terminal(
    edgewise: Edgewise, bpe_path: Path, seed: int
) -> None:
    drawn = ("run", "Hello", "--edge", str(bpe_path), "--temperature", "3", "--seed", str(seed))
    text = json.loads(edgewise(*drawn, "--json").out)["text"]
    assert printable(text) != text, "the model wrote no control character: nothing was tested"
    assert edgewise(*drawn).out == printable(text) + "\n"


@given(st.text())
def test_printable_drops_controls_and_keeps_the_rest(text: str) -> None:
    shown = printable(text + "\x1b]0;title\x07\u202eevil\x9b2J\r")
    assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in shown)
    assert "\u202e" not in shown
    kept = "".join(c for c in text if c.isalnum() or c in " \n\t")
    assert "".join(c for c in shown if c.isalnum() or c in " \n\t").startswith(kept)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # How Linux says that the other end is closed.
        return b""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("no_colour", [False, True])
def test_the_clouds_tokens_show_with_colour_and_without(tmp_path: Path, no_colour: bool) -> None:
    import pty

    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "edgewise", "run", PROMPT, "--router", "constant:1"],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_colour else {}),
    ) as process:
        os.close(follower)
        shown = b"".join(iter(lambda: _read(leader), b""))
    os.close(leader)
    assert process.returncode == 0
    assert b"cloud tokens" in shown
    assert re.search(rb"\x1b\[1;4m" if no_colour else rb"\x1b\[1;4;31m", shown), shown
    assert (b"31m" in shown) is not no_colour


def test_doctor_checks_everything(edgewise: Edgewise) -> None:
    result = edgewise("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert result.code == 0
    assert all(set(check) == {"name", "status", "detail", "fix"} for check in checks.values())
    assert {"edge model", "router", "cloud model", "vocabulary", "consult"} <= set(checks)
    assert "fail" not in {check["status"] for check in checks.values()}
    assert checks["what leaves the device"]["detail"].startswith("nothing")


def test_doctor_fails_where_a_check_fails(edgewise: Edgewise) -> None:
    result = edgewise("doctor", "--router", "constant:7")
    assert result.code == 1
    assert "fail router" in result.out
    assert "fix: " in result.out


def test_a_cloud_of_another_vocabulary(edgewise: Edgewise, other_path: Path) -> None:
    pair = ("--edge", str(other_path), "--cloud", "bundled", "--threshold", "0.1")
    told = edgewise("doctor", *pair[:4])
    assert told.code == 0, told.out
    assert "ok   vocabulary: two, bridged by text" in told.out
    result = edgewise("run", "Tell me about the heron.", *pair, "--json")
    answer = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert "critical" in {token["reason"] for token in answer["tokens"]}
    assert answer["usage"]["cloud_completion_tokens"]


@pytest.mark.parametrize("command", ["", "run", "demo", "doctor", "eval", "bench", "bench edge"])
def test_every_command_explains_itself(edgewise: Edgewise, command: str) -> None:
    result = edgewise(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(" ".join(["Usage: edgewise", *command.split()]))


@pytest.mark.parametrize("command", ["", "bench"])
def test_a_command_that_is_told_nothing_shows_its_help(edgewise: Edgewise, command: str) -> None:
    result = edgewise(*command.split())
    assert (result.code, result.out) == (2, "")
    assert result.err == edgewise(*command.split(), "--help").out
