"""`edgewise bench`: links, the bare edge, and the frontier, over real links and engines."""

import json
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.llama_server_process import llama_server
from tests.pocket_models import MID

pytestmark = pytest.mark.deep

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


def test_the_edge_beside_the_bare_engine(edgewise: Edgewise) -> None:
    told = edgewise.json("bench", "edge", "--context", "16", "--tokens", "8")
    assert {"native_tokens_per_second", "edgewise_tokens_per_second", "ratio"} <= told.keys()


FRONTIER = ("bench", "frontier", "--questions", "2")
QUICK = ("--pace", "none", "--round-trip", "5")


def test_the_bundled_pair_is_told_on_every_axis(edgewise: Edgewise, tmp_path: Path) -> None:
    command = (*FRONTIER, *QUICK, "--out", "kept")
    found = edgewise.json(*command)
    rows = {row["system"]: row for row in found["systems"]}
    timing = {name: row["timing"] for name, row in rows.items()}
    assert found["main"] == "bundled at 5%"
    assert {"edge", "cloud", "bundled at 5%", "bundled at 5%, waiting", "commit point"} <= set(rows)
    assert timing["cloud"]["bills"]["no cache discount"] == 1
    assert "16 tokens" in timing["cloud"]["note"]
    assert timing["bundled at 5%"]["sent"] > 0
    assert timing["cascade, equal share"]["clock"] == "composed"
    assert (tmp_path / "kept" / "outcomes.jsonl").read_bytes().count(b"\n") == 5 * 2
    assert edgewise.json(*command) == found
    assert "kept" in edgewise.refusal(*command, "--router", "entropy")


def test_a_users_own_pair_and_questions_at_an_engine(edgewise: Edgewise, tmp_path: Path) -> None:
    lines = [{"prompt": f"The word number {n} names", "answer": "a"} for n in range(8)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with llama_server(bundled("cloud")) as url:
        result = edgewise(
            *("bench", "frontier", "own.jsonl", "--check", "regex", "--questions", "2"),
            *("--edge", str(bundled("edge")), "--cloud", url, "--larger-edge", str(MID)),
            *("--router", "entropy", "--router", "random", "--cloud-share", "0.2"),
            *("--calibration", "2", "--max-tokens", "16"),
        )
    assert "entropy at 20%" in result.out
    assert "larger edge" in result.out
    assert "random at 20%" in result.out
    # No link is emulated, and the questions have no choices; the cloud is streamed.
    assert "commit point" not in result.out
    assert "16 tokens" not in result.err
