"""`eval --out` keeps a router's outcomes for that router, whatever its folder is called."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.routers.card import CONFIG, read_card
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.evaluation.plan import manifest
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

FEW = ("--limit", "3", "--calibration", "3", "--no-baselines", "--cloud-share", "0.1", "--json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def evaluated(folder: Path, *arguments: str, out: str = "out") -> dict[str, Any]:
    """What `edgewise eval` prints for the pair; every outcome is kept in `out`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EDGEWISE_")}
    done = subprocess.run(
        [sys.executable, "-m", "edgewise", "eval", "pocketqa", *FEW, "--out", out, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=kept,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["systems"][2]


def checkpoint(folder: Path, threshold: float) -> Path:
    """Calibrated max-prob: 0 consults at every token, 1 at none."""
    card = msgspec.structs.replace(
        read_card(bundled("router")),
        kind="max-prob",
        inputs=(),
        top_k=0,
        thresholds={"0.1": threshold},
        realised={},
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_bytes(msgspec.json.encode(card))
    return folder


def test_two_routers_in_folders_of_one_name(folder: Path) -> None:
    always = checkpoint(folder / "a" / "router", 0.0)
    never = checkpoint(folder / "b" / "router", 1.0)
    assert evaluated(folder, "--router", str(always))["cloud_share"] == 1.0
    assert evaluated(folder, "--router", str(never))["cloud_share"] == 0.0
    assert evaluated(folder, "--router", str(always))["cloud_share"] == 1.0


def test_the_same_router_elsewhere_is_not_asked_again(folder: Path) -> None:
    evaluated(folder, "--router", str(checkpoint(folder / "a" / "router", 0.0)))
    lines = (folder / "out" / "outcomes.jsonl").read_bytes()
    evaluated(folder, "--router", str(checkpoint(folder / "b" / "router", 0.0)))
    assert (folder / "out" / "outcomes.jsonl").read_bytes() == lines


def test_an_own_router_that_was_edited(folder: Path) -> None:
    source = """
from edgewise.edge.base import Needs

class Mine:
    needs, top = Needs.NOTHING, 0

    def score(self, step):
        return {score}
"""
    (folder / "mine.py").write_text(source.format(score="0.0 if step.position % 2 else 1.0"))
    first = evaluated(folder, "--router", "./mine.py:Mine")
    (folder / "mine.py").write_text(source.format(score="0.0"))
    second = evaluated(folder, "--router", "./mine.py:Mine")
    assert (first["system"], second["system"]) == ("mine.py:Mine", "mine.py:Mine")
    assert len((folder / "out" / "thresholds.jsonl").read_text().splitlines()) == 2


class Behind(ScriptedCloud):
    """An engine that says which model it serves."""

    def __init__(self, model: str) -> None:
        super().__init__(noise())
        self.name, self._model = "http://127.0.0.1:8080", model

    def identity(self) -> str:
        return f"{self.name} {self._model}"


def test_another_model_behind_one_address(folder: Path) -> None:
    task, edge = pocketqa().first(2), ScriptedEdge(noise())
    told = [manifest(task, task, edge, Behind(model)) for model in ("small", "large", "large")]
    assert told[0] != told[1] == told[2]
    Store(folder, told[0])
    with pytest.raises(UsageError, match="other models"):
        Store(folder, told[1])


def test_a_model_in_this_process_is_known_by_its_weights(folder: Path) -> None:
    task, edge = pocketqa().first(2), ScriptedEdge(noise())
    with closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1))) as cloud:
        assert manifest(task, task, edge, cloud)["cloud"] == cloud.model.fingerprint()
