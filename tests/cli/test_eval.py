"""`edgewise eval` on the bundled pair; `edgewise bench link`, over a real link and engine."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise

pytestmark = pytest.mark.deep

PLAIN = ("--systems", "edge,cloud,served,static")
QUICK = ("--limit", "6", "--calibration", "3", *PLAIN)


def test_json_tells_the_pair_and_every_system(edgewise: Edgewise) -> None:
    told = edgewise.json("eval", "pocketqa", *QUICK, "--cloud-share", "0.07")
    assert (told["task"], told["measure"], told["main"]) == ("pocketqa", "accuracy", None)
    assert told["warnings"] == [] or "realised" in told["warnings"][0]
    assert [system["system"] for system in told["systems"]][:2] == ["edge", "cloud"]
    edge, cloud, pair, static = told["systems"]
    assert {one["questions"] for one in told["systems"]} == {6}
    assert pair["families"].keys() == {*pocketqa().families}
    assert [one["cloud_share_asked"] for one in (pair, static)] == [0.07, 0.07]
    # As served comes first, and the share holds but for the bucket that it starts with.
    assert pair["system"] == f"{static['system']}, served"
    assert (cloud["cloud_share"], cloud["cloud_work"]) == (1.0, 1.0)
    assert (edge["cloud_work"], edge["prompt_computed"]) == (0.0, 0)
    counted = ("prompt_computed", "cloud_tokens", "wasted_tokens")
    work = [sum(one[name] for name in counted) for one in (pair, cloud)]
    assert pair["cloud_work"] == pytest.approx(work[0] / work[1])


def test_a_whole_report(edgewise: Edgewise) -> None:
    arguments = ("--limit", "3", "--calibration", "2", "--router", "margin", "--router", "entropy")
    shares = ("--cloud-share", "0.05", "--cloud-share", "0.1", "--max-tokens", "64")
    first = edgewise("eval", "pocketqa", *arguments, *shares, "--out", "done")
    said = "margin entropy random query-level exact recovered strictly computed cached written work"
    for word in said.split():
        assert word in first.out
    again = edgewise("eval", "pocketqa", *arguments, *shares, "--out", "done")
    assert again.out == first.out


def test_own_questions(edgewise: Edgewise) -> None:
    asked = ({"prompt": f"Hello {i}", "answer": "Hello|small sums"} for i in range(4))
    edgewise.write_lines("mine.jsonl", *asked)
    command = ("eval", "mine.jsonl", "--check", "regex", "--calibration", "2", *PLAIN)
    told = edgewise.json(*command)
    assert (told["task"], told["systems"][0]["questions"]) == ("mine", 2)
    far = told["warnings"][0]
    assert "pocketqa" in far
    assert "mine" in far
    shown = edgewise(*command)
    assert far in shown.err
    assert far not in shown.out


def test_questions_that_trained_the_router_are_counted_and_named(edgewise: Edgewise) -> None:
    asked = [*pocketqa("train").questions[:5], *pocketqa("test").questions[:2]]
    lines = ({"id": q.id, "prompt": q.prompt, "answer": q.answer} for q in asked)
    edgewise.write_lines("mine.jsonl", *lines)
    done = edgewise("eval", "mine.jsonl", "--calibration", "1", "--router", "bundled", code=2)
    some = ", ".join(question.id for question in asked[:3])
    assert f"({some}, ...)" in done.err


def test_replies_are_run_read_and_cut(edgewise: Edgewise) -> None:
    asked = [
        {"prompt": "Say one.", "answer": "assert one() == 1", "check": "code"},
        {"prompt": "Write a poem.", "answer": "It rhymes.", "check": "read"},
        {"prompt": "Hello 1", "answer": "Hello"},
        {"prompt": "Hello 2", "answer": "Hello"},
    ]
    edgewise.write_lines("mine.jsonl", *asked)
    command = ("eval", "mine.jsonl", "--calibration", "1", *PLAIN, "--max-tokens", "3")
    shown = edgewise(*command)
    assert "run on this machine" in shown.err
    assert "1 of 3 replies are to be read" in shown.out
    edge = edgewise.json(*command)["systems"][0]
    assert (edge["questions"], edge["to_read"], edge["cut"]) == (3, 1, 1.0)
    edgewise.write_lines("mine.jsonl", asked[1], asked[1])
    edgewise("eval", "mine.jsonl", "--calibration-data", "mine.jsonl", code=2)


PATIENCE = 60.0


def test_what_several_begin_one_goes_on_with(edgewise: Edgewise) -> None:
    """Answers that are independent are the same; what is as served depends on its neighbours."""
    command = ("eval", "pocketqa", *QUICK, "--json")

    def told(*more: str) -> tuple[dict[str, str], dict[str, str]]:
        """The answers and the accuracies."""
        done = edgewise(*command, *more)
        assert done.err == ""
        kept = (edgewise.folder / more[-1] / "outcomes.jsonl").read_text().splitlines()
        texts, figures = dict[str, str](), dict[str, str]()
        for one in map(json.loads, kept):
            name = f"{one['key']['cell']} {one['outcome']['question']}"
            texts[name] = one["outcome"]["text"]
        for one in json.loads(done.out)["systems"]:
            figures[f"{one['system']} {one['cloud_share_asked']}"] = one["accuracy"]
        assert len(texts) == len(kept)
        return independent(texts), independent(figures)

    def independent(found: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in found.items() if "served" not in name}

    one = told("--out", "one")
    assert told("--workers", "2", "--out", "two") == one
    kept = edgewise.folder / "two" / "outcomes.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:5]))
    assert told("--out", "two") == one


def test_systems_are_run_one_by_one_into_one_folder(edgewise: Edgewise) -> None:
    command = ("eval", "pocketqa", "--limit", "2", "--calibration", "2", "--out", "out")
    for systems in ("verify", "cloud", "served"):
        assert edgewise(*command, "--systems", systems).out == ""
    outcomes = edgewise.folder / "out" / "outcomes.jsonl"
    kept = outcomes.read_bytes()
    told = edgewise.json(*command, "--systems", "edge")
    assert [one["system"] for one in told["systems"]] == ["edge", "cloud"]
    own = edgewise.json(*command, "--systems", "edge,cloud,verify,served")
    assert [one["system"] for one in own["systems"]] == [
        *("edge", "cloud", "bundled, served", "verify, served")
    ]
    after = outcomes.read_bytes()
    assert after.startswith(kept)
    assert after.count(b"\n") == 8


def test_interrupted_it_ends_at_once_and_leaves_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgewise", "eval", "pocketqa", *PLAIN]
    command += ["--router", "bundled", "--calibration", "4", "--workers", "3", "--out", "out"]
    started = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Whoever runs the tests in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    kept = tmp_path / "out" / "outcomes.jsonl"
    end = time.monotonic() + PATIENCE
    while not (kept.exists() and kept.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=PATIENCE)
    assert (started.returncode, out.strip()) == (130, b"")
    assert b"Traceback" not in err
    while time.monotonic() < end:
        with suppress(PermissionError):
            try:
                os.killpg(started.pid, 0)
            except ProcessLookupError:
                return
        time.sleep(0.05)
    pytest.fail("processes are left")


LINK = ("bench", "link", "--questions", "2")


def test_a_link_is_measured_on_the_bundled_pair(edgewise: Edgewise) -> None:
    found = edgewise.json(*LINK, "--round-trip", "60", "--pace", "0.5b")
    (row,) = found["rows"]
    assert row["questions"] == 2
    advice = found["advice"]
    assert advice["fastest"] in ("edge", "routing", "streaming")
    assert "60 ms" in " ".join(advice["sentences"])
    assert row["round_trip"] == 0.06
    assert row["step"] >= 0.029
    assert row["identical"] == 2
    assert row["bound"] >= 1
    assert row["waiting"]["value"] > 1
    # Speculation decodes at least once a token.
    assert row["decodes_per_token"] >= 1
