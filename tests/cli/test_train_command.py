"""`edgewise train` on the bundled pair."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Edgewise


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--inputs", "logits"), "--inputs can be hidden"),
        (("--hidden", "0"), "must be 1 or more"),
        (("--limit", "0"), "--limit must be 1 or more"),
        (("--calibration", "0"), "--calibration must be 1 or more"),
        (("--cloud", "none"), "name one with --cloud"),
    ],
)
def test_bad_input_is_one_sentence(
    edgewise: Edgewise, arguments: tuple[str, ...], problem: str
) -> None:
    done = edgewise("train", "pocketqa", "--out", "router", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert problem in done.err


def test_the_bundled_pair_gets_a_router(edgewise: Edgewise, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    few = ("--limit", "30", "--calibration", "6")
    done = edgewise("train", "pocketqa", "--out", "router", *few)
    assert done.code == 0, done.err
    card = json.loads((tmp_path / "router" / "config.json").read_text())
    assert len(card["thresholds"]) == 7
    asked = ("--limit", "3", "--cloud-share", "0.05", "--no-baselines", "--json")
    told = json.loads(edgewise("eval", "pocketqa", "--router", "router", *asked).out)
    assert told["router"] == "router"
