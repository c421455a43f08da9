"""A price on the command line: shown, limited, and refused where it can mean nothing."""

import re
import sqlite3
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.llama_server_process import llama_server

QUESTION = "Tell me about copper."
PRICE = ("--price", "2,0.5,8")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "edgewise" / "spent.db"


def test_a_run_says_what_it_paid(edgewise: Edgewise, state: Path) -> None:
    assert "paid" not in edgewise("run", QUESTION, "--max-tokens", "4").err
    assert not state.exists()
    edgewise.write("prices.toml", 'input = 2\ncached = 0.5\noutput = 8\ncurrency = "EUR"\n')
    asked = ("run", QUESTION, "--cloud-share", "0.3", "--price", "prices.toml")
    shown = edgewise(*asked)
    assert re.search(r"paid 0\.0000\d+, saved 0\.0000\d+ EUR \(\d+%\)", shown.err)
    usage = edgewise.json(*asked)["usage"]
    cost = usage["cost"]
    assert cost["input_tokens"] == usage["cloud_prompt_computed"]
    assert cost["cached_tokens"] == usage["cloud_prompt_cached"]
    assert cost["output_tokens"] == usage["cloud_completion_tokens"]
    assert cost["saved"] >= 0
    # Without a cloud it is what it would have been.
    alone = edgewise("run", QUESTION, "--cloud", "none", *PRICE, "--max-tokens", "4")
    assert re.search(r"paid about 0, saved about 0\.0000\d+ \(100%\)", alone.err)


def test_a_limit_for_an_answer(edgewise: Edgewise) -> None:
    asked = ("run", QUESTION, "--cloud-share", "1", *PRICE)
    free = edgewise.json(*asked)["usage"]["cost"]["paid"]
    assert free > 0
    held = edgewise.json(*asked, "--max-cost", str(free / 2))
    assert held["usage"]["cost"]["paid"] <= free / 2
    assert "cost" in {token["reason"] for token in held["tokens"]}
    none = edgewise.json(*asked, "--max-cost", "0")["usage"]
    assert (none["cloud_calls"], none["cost"]["paid"]) == (0, 0)


@pytest.mark.deep
def test_a_limit_for_a_day_holds_over_runs(edgewise: Edgewise, state: Path) -> None:
    with llama_server(bundled("cloud")) as engine:
        asked = ("run", QUESTION, "--cloud", engine, "--max-tokens", "6")
        asked = (*asked, *PRICE, "--cloud-share", "1", "--deadline", "30")
        first = edgewise.json(*asked)["usage"]["cost"]["paid"]
        most = round(1.5 * first, 9)
        paid = [first]
        for _ in range(2):
            done = edgewise.json(*asked, "--max-cost-day", str(most))
            paid.append(done["usage"]["cost"]["paid"])
    assert "cost" in {token["reason"] for token in done["tokens"]}
    assert paid[1] > 0
    assert sum(paid) <= most
    with sqlite3.connect(state) as kept:
        ((amount,),) = kept.execute("SELECT amount FROM spent").fetchall()
    assert float(amount) == pytest.approx(sum(paid))


def test_a_broken_file_ends_it_at_once(edgewise: Edgewise, state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_bytes(b"no database at all" * 50)
    said = edgewise.refusal("run", QUESTION, *PRICE, "--max-cost-day", "1")
    assert "budget file" in said
    assert "(--max-cost-day)" in said
    # Without a limit for the day it is said, and the answer stands.
    edgewise("run", QUESTION, *PRICE, "--max-tokens", "4")


def test_a_chat_sums_up_its_conversation(edgewise: Edgewise) -> None:
    lines = f"{QUESTION}\nAnd iron?\n/new\n{QUESTION}\n"
    done = edgewise("chat", "--cloud-share", "0.3", *PRICE, stdin=lines.encode())
    assert done.err.count("paid ") == 4
    assert done.err.count("the conversation: paid") == 1
