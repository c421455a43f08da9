"""`edgewise eval` on the bundled pair."""

import csv
import json
from pathlib import Path

import pytest

from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise

pytestmark = pytest.mark.deep

QUICK = ("--limit", "6", "--calibration", "6", "--no-baselines")


def test_json_tells_the_pair_and_every_system(edgewise: Edgewise) -> None:
    done = edgewise("eval", "pocketqa", *QUICK, "--cloud-share", "0.07", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["task"], told["questions"]) == ("pocketqa", 6)
    assert told["accuracy"].keys() == {"edge", "pair", "cloud"}
    assert told.keys() >= {"gap_recovered", "cloud_share", "families", "interval"}
    assert told["families"].keys() == {*pocketqa().families}
    assert told["strict"]["accuracy"].keys() == {"edge", "pair", "cloud"}
    assert told["warnings"] == [] or "realised" in told["warnings"][0]
    assert [system["system"] for system in told["systems"]][:2] == ["edge", "cloud"]
    edge, cloud, pair = told["systems"]
    assert (cloud["cloud_share"], cloud["cloud_work"]) == (1.0, 1.0)
    assert (edge["cloud_work"], edge["prompt_computed"]) == (0.0, 0)
    work = [one["prompt_computed"] + one["cloud_tokens"] for one in (pair, cloud)]
    assert pair["cloud_work"] == pytest.approx(work[0] / work[1])
    assert told["cloud_work"] == pair["cloud_work"]


def test_a_whole_report(edgewise: Edgewise, tmp_path: Path) -> None:
    arguments = ("--limit", "6", "--calibration", "6", "--router", "margin", "--router", "entropy")
    shares = ("--cloud-share", "0.05", "--cloud-share", "0.1")
    files = ("--csv", "figures.csv", "--out", "done")
    first = edgewise("eval", "pocketqa", *arguments, *shares, *files)
    assert first.code == 0
    for said in ("margin", "entropy", "random", "query-level", "oracle", "gap recovered"):
        assert said in first.out
    lines = list(csv.DictReader((tmp_path / "figures.csv").read_text().splitlines()))
    assert {line["family"] for line in lines} == {"all", *pocketqa().families}
    again = edgewise("eval", "pocketqa", *arguments, *shares, "--out", "done")
    assert again.out == first.out
    for said in ("strictly", "computed", "cached", "written", "work"):
        assert said in first.out


def test_own_questions(edgewise: Edgewise, tmp_path: Path) -> None:
    line = json.dumps({"prompt": "Hello", "answer": "Hello|small sums"})
    lines = [line.replace('Hello"', f'Hello {i}"', 1) for i in range(4)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    arguments = ("--check", "regex", "--calibration", "2", "--no-baselines", "--json")
    told = json.loads(edgewise("eval", "mine.jsonl", *arguments).out)
    assert (told["task"], told["questions"]) == ("mine", 2)
    far = told["warnings"][0]
    assert "pocketqa" in far
    assert "mine" in far
    shown = edgewise("eval", "mine.jsonl", *arguments[:-1])
    assert far in shown.err
    assert far not in shown.out


def test_questions_that_trained_the_router_are_counted_and_named(
    edgewise: Edgewise, tmp_path: Path
) -> None:
    asked = [*pocketqa("train").questions[:5], *pocketqa("test").questions[:2]]
    lines = [json.dumps({"id": q.id, "prompt": q.prompt, "answer": q.answer}) for q in asked]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    done = edgewise("eval", "mine.jsonl", "--calibration", "1", "--router", "bundled")
    assert done.code == 2
    some = ", ".join(question.id for question in asked[:3])
    assert f"({some}, ...)" in done.err
