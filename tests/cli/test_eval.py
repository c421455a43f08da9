"""`edgewise eval` on the bundled pair."""

import csv
import json
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.llama_server_process import llama_server

QUICK = ("--limit", "6", "--calibration", "6", "--no-baselines")


def test_json_tells_the_pair_and_every_system(edgewise: Edgewise) -> None:
    done = edgewise("eval", "pocketqa", *QUICK, "--cloud-share", "0.07", "--json")
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert (told["task"], told["questions"]) == ("pocketqa", 6)
    assert told["accuracy"].keys() == {"edge", "pair", "cloud"}
    assert told.keys() >= {"gap_recovered", "cloud_share", "families", "interval"}
    assert told["families"].keys() == {"facts", "two-hop", "steps"}
    assert [system["system"] for system in told["systems"]][:2] == ["edge", "cloud"]
    assert told["systems"][1]["cloud_share"] == 1.0


def test_a_whole_report(edgewise: Edgewise, tmp_path: Path) -> None:
    arguments = ("--limit", "6", "--calibration", "6", "--router", "margin", "--router", "entropy")
    shares = ("--cloud-share", "0.05", "--cloud-share", "0.1")
    files = ("--csv", "figures.csv", "--plot", "figures.png", "--out", "done")
    first = edgewise("eval", "pocketqa", *arguments, *shares, *files)
    assert first.code == 0
    for said in ("margin", "entropy", "random", "query-level", "oracle", "gap recovered"):
        assert said in first.out
    lines = list(csv.DictReader((tmp_path / "figures.csv").read_text().splitlines()))
    assert {line["family"] for line in lines} == {"all", "facts", "two-hop", "steps"}
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
    again = edgewise("eval", "pocketqa", *arguments, *shares, "--out", "done")
    assert again.out == first.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mmlu",), "There is no task 'mmlu'"),
        (("pocketqa", "--metric", "log-likelihood"), "undefined"),
        (("pocketqa", "--limit", "0"), "limit must be 1 or more"),
        (("pocketqa", "--calibration", "0"), "calibration must be 1 or more"),
        (("pocketqa", "--cloud-share", "0"), "between 0 and 1"),
        (("pocketqa", "--cloud-share", "nan"), "between 0 and 1"),
        (("pocketqa", "--cloud", "none"), "name one (--cloud)"),
        (("pocketqa", "--router", "nope"), "There is no router 'nope'"),
        (("pocketqa", "--router", "./entropy", "--router", "entropy"), "no router './entropy'"),
        (("mine.jsonl", "--calibration", "5"), "leave none beside"),
        (("mine.jsonl", "--calibration", "1", "--csv", "no/x.csv"), "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(
    edgewise: Edgewise, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    lines = [json.dumps({"prompt": f"Say {i}.", "answer": f"{i}"}) + "\n" for i in range(3)]
    (tmp_path / "mine.jsonl").write_text("".join(lines))
    done = edgewise("eval", *arguments)
    assert done.code == 2
    assert problem in done.err
    assert done.err.count("\n") == 1


def test_own_questions(edgewise: Edgewise, tmp_path: Path) -> None:
    line = json.dumps({"prompt": "Hello", "answer": "Hello|small sums"})
    lines = [line.replace('Hello"', f'Hello {i}"', 1) for i in range(4)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    arguments = ("--check", "regex", "--calibration", "2", "--no-baselines", "--json")
    told = json.loads(edgewise("eval", "mine.jsonl", *arguments).out)
    assert (told["task"], told["questions"]) == ("mine", 2)


def test_the_longest_answer(edgewise: Edgewise, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"Hello {i}", "answer": "x"}) for i in range(4)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    arguments = ("--max-tokens", "3", "--calibration", "2", "--no-baselines", "--json")
    told = json.loads(edgewise("eval", "mine.jsonl", *arguments).out)
    assert told["systems"][1]["cloud_tokens"] == 6
    refused = edgewise("eval", "mine.jsonl", "--calibration", "2", "--max-tokens", "0")
    assert "max-tokens must be 1 or more, not 0" in refused.err


def test_a_llama_server_gives_what_the_same_model_gives_here(edgewise: Edgewise) -> None:
    arguments = ("eval", "pocketqa", *QUICK, "--router", "entropy", "--json")
    local = json.loads(edgewise(*arguments).out)
    with llama_server(bundled("cloud")) as url:
        remote = json.loads(edgewise(*arguments, "--cloud", url).out)
    assert remote["accuracy"] == local["accuracy"]
    assert remote["cloud_share"] == pytest.approx(local["cloud_share"], abs=0.02)
    assert remote["systems"][2]["prompt_computed"] > 0
