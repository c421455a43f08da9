"""The wheel holds all that the package needs, and answers from what it holds."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.programs import python

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make wheel` builds it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), folder=ROOT)
    (found,) = folder.glob("*.whl")
    return found


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    """Models, page, checkpoints: the builder leaves out whatever git ignores."""
    there = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").glob("edgewise*/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }
    names = set(ZipFile(wheel).namelist())
    assert there <= names
    info = {name.partition("/")[2] for name in names - there}
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt"} | {
        f"licenses/{name}" for name in ("LICENSE", "NOTICE")
    }


def test_it_answers_where_nothing_else_is(wheel: Path, tmp_path: Path) -> None:
    ZipFile(wheel).extractall(tmp_path / "installed")
    code = "import edgewise; print(edgewise.__file__, edgewise.Pair().ask('Hi').text)"
    done = python("-c", code, folder=tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert done.stdout.startswith(str(tmp_path / "installed"))
    assert len(done.stdout.split()) > 1
