"""Own routers, tasks and labels, exactly as docs/routers.md and docs/evaluation.md say.

The classes and the entry points are those of the documents, installed as a package of its own; the
commands run on the bundled pair with a handful of questions.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_bad_input import rows

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[1]
FEW = ("--limit", "40", "--calibration", "6")
QUICK = ("--limit", "3", "--calibration", "3", "--no-baselines", "--json")

Edgewise = Callable[..., "subprocess.CompletedProcess[str]"]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def install(folder: Path) -> Path:
    """What pip would make of the package that the documents describe."""
    surprise, linear, first_mismatch = blocks("docs/routers.md", "python")
    (alphabet,) = blocks("docs/evaluation.md", "python")
    package, info = folder / "mine", folder / "mine-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "routers.py").write_text(surprise + linear)
    (package / "labels.py").write_text(first_mismatch)
    (package / "tasks.py").write_text(alphabet)
    points = blocks("docs/routers.md", "toml") + blocks("docs/evaluation.md", "toml")
    points.append('[project.entry-points."edgewise.routers"]\nlinear = "mine.routers:Linear"\n')
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points(points))
    return folder


def entry_points(sections: list[str]) -> str:
    """Of `pyproject.toml`'s sections, as a wheel holds them."""
    lines: dict[str, list[str]] = {}
    for section in sections:
        group, line = re.fullmatch(r'\[project\.entry-points\."(.+)"\]\n(.+)\n', section).groups()  # type: ignore[union-attr]
        lines.setdefault(group, []).append(line.replace('"', ""))
    return "".join(f"[{group}]\n" + "\n".join(named) + "\n" for group, named in lines.items())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"))


@pytest.fixture
def edgewise(packages: Path, tmp_path: Path) -> Edgewise:
    """Run `edgewise` in an empty folder, with the package installed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EDGEWISE_", "HF_"))}
    path = os.pathsep.join(filter(None, [str(packages), kept.get("PYTHONPATH", "")]))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "edgewise", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=kept | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            timeout=240,
            check=False,
        )

    return run


def passed(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done: "subprocess.CompletedProcess[str]") -> str:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def router_file(packages: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(packages / "mine" / "routers.py", tmp_path / "mine_too.py"))


def test_an_own_router_answers_as_the_one_that_it_is(edgewise: Edgewise) -> None:
    told, max_prob = (
        json.loads(passed(edgewise("run", "Hello", "--router", name, "--json")))
        for name in ("surprise", "max-prob")
    )
    assert told["text"] == max_prob["text"]
    assert [token["score"] for token in told["tokens"]] == [
        token["score"] for token in max_prob["tokens"]
    ]


@pytest.mark.parametrize(
    ("kind", "recorded"),
    [
        ("linear", "linear"),
        ("./mine_too.py:Linear", "../mine_too.py:Linear"),
    ],
)
def test_an_own_router_is_trained_with_an_own_label(
    edgewise: Edgewise, packages: Path, tmp_path: Path, kind: str, recorded: str
) -> None:
    """Collect, label, fit, calibrate, card, check and eval, without torch."""
    router_file(packages, tmp_path)
    arguments = ("--kind", kind, "--label", "first-mismatch", *FEW)
    passed(edgewise("train", "pocketqa", "--out", "router", *arguments))
    card = json.loads((tmp_path / "router" / "config.json").read_text())
    assert (card["kind"], len(card["thresholds"])) == (recorded, 7)
    assert card["label"]
    assert f"`{recorded}`" in (tmp_path / "router" / "README.md").read_text()
    checked = passed(edgewise("router", "check", "router"))
    assert "40 training questions" in checked
    evaluated = edgewise("eval", "pocketqa", *QUICK, "--router", "router", "--cloud-share", "0.05")
    assert json.loads(passed(evaluated))["systems"][2]["cloud_tokens"] > 0


def test_an_own_task_is_evaluated_and_trained_on(edgewise: Edgewise, tmp_path: Path) -> None:
    told = json.loads(passed(edgewise("eval", "alphabet", *QUICK, "--out", "done")))
    assert (told["task"], told["questions"], list(told["families"])) == (
        "alphabet",
        3,
        ["letters"],
    )
    outcomes = (tmp_path / "done" / "outcomes.jsonl").read_text().splitlines()
    asked = {json.loads(line)["outcome"]["question"] for line in outcomes}
    assert asked == {"m", "n", "o"}
    trained = edgewise(
        *("train", "alphabet", "--out", "r", "--kind", "linear", "--label", "mismatch"),
        *("--calibration", "3"),
    )
    passed(trained)
    card = json.loads((tmp_path / "r" / "config.json").read_text())
    assert card["trained_on"] == "alphabet, 9 questions"
    assert "3 other" in card["calibrated_on"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    rows("""
eval alphabet --data x.jsonl | has its own questions and grading
eval alphabeta | name alphabet, commonsenseqa, gsm8k, pocketqa or a JSON Lines
run Hello --router linear | A router of the kind 'linear' is trained
train alphabet --out r --kind surprise | 'surprise' cannot be trained: it has no fit
train alphabet --out r --kind linear --label second | There is no label 'second'
train alphabet --out r --kind linear --label first-mismatch --rounds 2 | takes no rounds; drop it
"""),
)
def test_what_they_do_not_take_is_refused(
    edgewise: Edgewise, arguments: list[str], problem: str
) -> None:
    assert problem in refused(edgewise(*arguments))
