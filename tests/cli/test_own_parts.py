"""Own routers, tasks and labels, exactly as docs/routers.md and docs/evaluation.md say.

The classes and the entry points are those of the documents, installed as a package of its own; the
commands run on the bundled pair with a handful of questions.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Edgewise
from tests.cli.test_bad_input import rows
from tests.installed import install

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
FEW = ("--limit", "10", "--calibration", "2", "--max-tokens", "48")
SYSTEMS = ("--systems", "edge,cloud,served,static")
QUICK = ("--limit", "3", "--calibration", "3", *SYSTEMS)


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip would make of the package that the documents describe."""
    folder = tmp_path_factory.mktemp("site")
    surprise, linear, first_mismatch = blocks("docs/routers.md", "python")
    (alphabet,) = blocks("docs/evaluation.md", "python")
    package = folder / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "routers.py").write_text(surprise + linear)
    (package / "labels.py").write_text(first_mismatch)
    (package / "tasks.py").write_text(alphabet)
    points = blocks("docs/routers.md", "toml") + blocks("docs/evaluation.md", "toml")
    points.append('[project.entry-points."edgewise.routers"]\nlinear = "mine.routers:Linear"\n')
    for number, section in enumerate(points):
        point = re.fullmatch(r'\[project\.entry-points\."(.+)"\]\n(.+)\n', section)
        install(folder, f"mine{number}", point[2].replace('"', ""), group=point[1])
    return folder


@pytest.fixture
def own(edgewise: Edgewise, packages: Path, monkeypatch: pytest.MonkeyPatch) -> Edgewise:
    """Run `edgewise` with the package installed."""
    monkeypatch.syspath_prepend(packages)
    return edgewise


def test_an_own_router_answers_as_the_one_that_it_is(own: Edgewise) -> None:
    def tokens(router: str) -> list[tuple[str, float]]:
        told = own.json("run", "Hello", "--router", router)
        return [(token["text"], token["score"]) for token in told["tokens"]]

    assert tokens("surprise") == tokens("max-prob")


@pytest.mark.parametrize(
    ("kind", "recorded"), [("linear", "linear"), ("./mine_too.py:Linear", "../mine_too.py:Linear")]
)
def test_an_own_router_is_trained_with_an_own_label(
    own: Edgewise, packages: Path, tmp_path: Path, kind: str, recorded: str
) -> None:
    """Collect, label, fit, calibrate, card and eval, without torch."""
    shutil.copy(packages / "mine" / "routers.py", tmp_path / "mine_too.py")
    arguments = ("--kind", kind, "--label", "first-mismatch", *FEW)
    own("train", "pocketqa", "--out", "router", *arguments)
    card = json.loads((tmp_path / "router" / "config.json").read_text())
    assert (card["kind"], len(card["thresholds"])) == (recorded, 7)
    assert card["label"]
    assert recorded in own("router", "show", "./router").out
    assert len((tmp_path / "router" / "trained_on.txt").read_text().split()) == 10
    told = own.json("eval", "pocketqa", *QUICK, "--router", "./router", "--cloud-share", "0.05")
    assert told["systems"][2]["cloud_tokens"] > 0


def test_an_own_task_is_evaluated_and_trained_on(own: Edgewise, tmp_path: Path) -> None:
    told = own.json("eval", "alphabet", *QUICK, "--out", "done")
    edge = told["systems"][0]
    assert (told["task"], edge["questions"], list(edge["families"])) == ("alphabet", 3, ["letters"])
    outcomes = (tmp_path / "done" / "outcomes.jsonl").read_text().splitlines()
    asked = {json.loads(line)["outcome"]["question"] for line in outcomes}
    assert asked == {"m", "n", "o"}
    training = ("--out", "r", "--kind", "linear", "--label", "final", "--calibration", "3")
    own("train", "alphabet", *training)
    card = json.loads((tmp_path / "r" / "config.json").read_text())
    assert card["trained_on"] == "alphabet, 9 questions"
    assert "3 other" in card["calibrated_on"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    rows("""
eval alphabet --data x.jsonl | has its own questions and grading
eval alphabeta | name alphabet, commonsenseqa, commonsenseqa-paper, everyday
run Hello --router linear | A router of the kind 'linear' is trained
train alphabet --out r --kind surprise | 'surprise' cannot be trained: it has no fit
train alphabet --out r --kind linear --label second | There is no label 'second'
"""),
)
def test_what_they_do_not_take_is_refused(
    own: Edgewise, arguments: list[str], problem: str
) -> None:
    assert problem in own.refusal(*arguments)
