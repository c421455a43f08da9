"""`edgewise train` and `edgewise router` on the bundled pair, and through a real llama-server."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgewise.addresses import bundled
from edgewise_lab.evaluation.tasks.base import digest
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.cli.conftest import Edgewise, Run
from tests.hub import Hub, Repository, serving
from tests.llama_server_process import llama_server

pytestmark = pytest.mark.deep

IDLE = """
import numpy as np
from edgewise.edge.base import Needs
from edgewise_lab.training.fit import held_out
from edgewise_lab.training.fit import Fitted

class Idle:
    needs, top = Needs.NOTHING, 0

    @classmethod
    def load(cls, card, folder):
        return cls()

    @staticmethod
    def fit(data, recipe, done):
        labels = data.labels[held_out(data, recipe.held_out, recipe.seed)]
        return Fitted({"w": np.ones(1)}, 0.3, 0.2, np.full_like(labels, 0.5), labels)

    def score(self, step):
        return 0.5
"""

SHORT = ("--max-tokens", "32")
FEW = ("--limit", "12", "--calibration", "1", *SHORT, "--epochs", "1")


def test_a_router_that_is_worth_nothing_says_so(edgewise: Edgewise) -> None:
    """Fitted to noise and calibrated on two questions: it is made, and told what it is."""
    edgewise.write("idle.py", IDLE)
    few = ("--limit", "12", "--calibration", "2", *SHORT, "--label", "final")
    done = edgewise("train", "pocketqa", "--out", "r", "--kind", "./idle.py:Idle", *few)
    assert "1.0%" in done.err
    assert "12 prompts" in done.err
    assert "not learnt" in done.out
    assert "edgewise eval" in done.out
    shown = edgewise("router", "show", "r")
    warnings = [line for line in done.err.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) >= 2
    assert shown.err.splitlines() == warnings
    checks = edgewise.json("doctor", "--router", "./r")["checks"]
    (router,) = (check for check in checks if check["name"] == "router")
    assert (router["status"], "constant" in router["detail"]) == ("warn", True)


def test_training_through_an_engine(edgewise: Edgewise, tmp_path: Path) -> None:
    """The cloud's answers and rollouts come over HTTP, many at a time."""
    pytest.importorskip("torch")
    with llama_server(bundled("cloud")) as url:
        edgewise("train", "pocketqa", "--out", "remote", *FEW, "--cloud", url)
    edgewise("train", "pocketqa", "--out", "local", *FEW, "--label", "final")

    def answers(name: str) -> dict[str, Any]:
        lines = (tmp_path / name / "data" / "answers.jsonl").read_text().splitlines()
        return {line["question"]: line for line in map(json.loads, lines)}

    over_http, here = answers("remote"), answers("local")
    same = [over_http[name]["ids"] == here[name]["ids"] for name in here]
    assert sum(same) >= 0.9 * len(same)  # a near tie may come out otherwise in another batch
    card = json.loads((tmp_path / "remote" / "config.json").read_text())
    assert "consult" in card["label"]


def test_prompts_alone_killed_and_run_again(edgewise: Edgewise, tmp_path: Path) -> None:
    """A chat log, an agreement, and what SIGKILL leaves."""
    edgewise.write("idle.py", IDLE)
    for name, split in (("mine", "train"), ("others", "test")):
        turns = ([{"role": "user", "content": q.prompt}] for q in pocketqa(split).questions[:20])
        edgewise.write_lines(f"{name}.jsonl", *({"messages": messages} for messages in turns))
    arguments = ("train", "mine.jsonl", "--out", "r", "--kind", "./idle.py:Idle", *SHORT)
    command = [sys.executable, "-m", "edgewise", *arguments]
    labels = tmp_path / "r" / "data" / "labels-final.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while not (labels.exists() and labels.stat().st_size) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    kept = labels.read_bytes()
    done = edgewise(*arguments, "--price", "1,1,4")
    assert labels.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert "It took 0:" in done.err
    assert "16 questions" in edgewise("router", "show", "r").out
    judged = ("--router", "./r", "--systems", "edge,cloud,served", *SHORT)
    told = edgewise.json("eval", "others.jsonl", *judged)
    assert (told["measure"], told["systems"][1]["accuracy"]) == ("agreement", 1.0)


@pytest.mark.parametrize(
    ("choices", "label", "inputs"),
    [(["oak", "fir"], "rescue", ["text", "ranks"]), (None, "final", ["hidden", "top_logprobs"])],
)
def test_what_prompts_alone_are_learnt_with(
    edgewise: Edgewise, choices: list[str] | None, label: str, inputs: list[str]
) -> None:
    edgewise.write("idle.py", IDLE)
    asked = [{"prompt": f"Is {n} oak or fir?", "choices": choices} for n in range(12)]
    edgewise.write_lines("mine.jsonl", *asked)
    few = ("--calibration", "2", "--max-tokens", "8", "--kind", "./idle.py:Idle")
    edgewise("train", "mine.jsonl", "--out", "r", *few)
    (labels,) = (edgewise.folder / "r/data").glob("labels-*")
    assert labels.name == f"labels-{label}.jsonl"
    assert json.loads((edgewise.folder / "r/config.json").read_text())["inputs"][:2] == inputs


def test_held_out_questions_are_not_trained_on() -> None:
    trained = {question.prompt for question in pocketqa("train").questions}
    for split in ("calibration", "test"):
        assert not trained & {question.prompt for question in pocketqa(split).questions}
    recorded = (bundled("router") / "trained_on.txt").read_text().split()
    assert set(recorded) == {digest(prompt) for prompt in trained}


def test_routers_of_the_package_have_names(edgewise: Edgewise) -> None:
    assert "text, ranks" in edgewise("router", "show", "bundled-edge").out
    edgewise("run", "Hello", "--router", "bundled-edge")
    shown = edgewise("router", "show", "bundled")
    assert "pocketqa, 5000 questions" in shown.out
    assert shown.out.count("%") >= 14
    assert edgewise.json("router", "show", "bundled")["kind"] == "mlp"


def test_a_published_folder_can_be_named(cli: Run) -> None:
    files = {path.name: path.read_bytes() for path in bundled("router").iterdir()}
    with serving(Hub({"me/router": Repository(files)})) as hub:
        cli("run", "Hello", "--router", "me/router", "--json", HF_ENDPOINT=hub.endpoint)
    cli("router", "show", "me/router", HF_ENDPOINT=hub.endpoint)  # offline
