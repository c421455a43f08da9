"""`edgewise bench frontier`: the bundled pair through a gateway, a user's own pair at an engine."""

import json
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.llama_server_process import llama_server
from tests.pocket_models import MID

pytestmark = pytest.mark.deep

FRONTIER = ("bench", "frontier", "--questions", "2")
QUICK = ("--pace", "none", "--round-trip", "5")


def test_the_bundled_pair_is_told_on_every_axis(edgewise: Edgewise, tmp_path: Path) -> None:
    command = (*FRONTIER, *QUICK, "--out", "kept", "--json")
    result = edgewise(*command)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    rows = {row["system"]: row for row in found["rows"]}
    assert found["main"] == "bundled at 5%"
    assert {"edge", "cloud", "bundled at 5%", "bundled at 5%, waiting", "commit point"} <= set(rows)
    assert rows["cloud"]["bills"]["no cache discount"] == 1
    assert "16 tokens" in rows["cloud"]["note"]
    assert rows["bundled at 5%"]["sent"] > 0
    assert rows["cascade, equal share"]["clock"] == "composed"
    assert {one["system"] for one in found["whole"]} >= {"cascade"}
    kept = sorted(path.name for path in (tmp_path / "kept").glob("*.answers.jsonl"))
    assert len(kept) == 5
    again = edgewise(*command)
    assert again.code == 0, again.err
    assert json.loads(again.out) == found
    other = edgewise(*command, "--router", "entropy")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "kept" in other.err


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
    assert result.code == 0, result.err
    assert "entropy at 20%" in result.out
    assert "larger edge" in result.out
    assert "random at 20%" in result.out
    # No link is emulated, and the questions have no choices; the cloud is streamed.
    assert "commit point" not in result.out
    assert "16 tokens" not in result.err
