"""Doors: names, entry points and code by itself; every way to fail is one sentence."""

import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import EdgewiseError, UsageError
from edgewise.opening import open_router, router_identity
from edgewise.registry import code_file, is_code
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, RouterCard
from edgewise.routers.named import ROUTERS, identity_named, is_router, router_named
from edgewise.settings import Settings
from edgewise.testing.scripted_edge import HIDDEN, ByteTokenizer, ScriptedEdge, noise
from tests.installed import install

GOOD = """
from edgewise.edge.base import Needs

class Half:
    needs, top = Needs.NOTHING, 0

    def score(self, step):
        return 0.5
"""


class Site:
    """A folder of installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> None:
        (self.folder / f"{name}.py").write_text(source)

    def package(self, name: str, *points: str) -> None:
        install(self.folder, name, *points, group="edgewise.routers")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


def said(error: pytest.ExceptionInfo[UsageError]) -> str:
    """Its one sentence."""
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert "--" not in text
    return text


def test_a_package_adds_a_name_and_what_is_not_asked_for_is_not_imported(site: Site) -> None:
    site.module("halves", GOOD)
    site.package("halves", "half = halves:Half")
    site.module("loud", "raise SystemExit('imported')")
    site.package("loud", "loud = loud:Loud")
    assert "half" in ROUTERS
    assert "loud" in ROUTERS.names()
    assert ROUTERS.names() == sorted(ROUTERS.names())
    assert router_named("half").score(None) == 0.5  # type: ignore[arg-type]
    assert is_router("entropy")
    assert "loud" not in sys.modules


@pytest.mark.parametrize("name", ["entropy", "mlp", "half"])
def test_the_name_of_another_is_refused(site: Site, name: str) -> None:
    """Of a built-in one, and of another package's."""
    site.module("halves", GOOD)
    site.package("first", "half = halves:Half")
    site.package("second", f"{name} = halves:Other")
    with pytest.raises(UsageError, match="'halves:"):
        ROUTERS.names()
    if name != "half":
        assert ROUTERS.load(name).__module__.startswith("edgewise.")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "cannot be loaded from 'broken:Half' (ModuleNotFoundError: No module"),
        ("1 / 0", "(ZeroDivisionError: division by zero); repair or remove the package"),
        ("class Half: pass", "'half' is not a router: it lacks score"),
        (f"{GOOD}\nHalf = Half()", "'half' is not a router"),
    ],
)
def test_a_package_that_is_broken(site: Site, source: str | None, problem: str) -> None:
    if source is not None:
        site.module("broken", source)
    site.package("broken", "half = broken:Half")
    with pytest.raises(UsageError) as caught:
        ROUTERS.load("half")
    assert problem in said(caught)
    assert caught.value.__cause__ is not None or "not a router" in problem


def file(folder: Path, source: str = GOOD) -> Path:
    path = folder / "mine.py"
    path.write_text(source)
    return path


def test_code_by_module_and_by_file(site: Site) -> None:
    path = file(site.folder)
    for name in ("mine:Half", f"{path}:Half"):
        assert is_router(name)
        assert router_named(name).score(None) == 0.5  # type: ignore[arg-type]


def test_a_file_runs_once_until_it_changes(site: Site) -> None:
    path = file(site.folder, f"print('runs')\n{GOOD}")
    name = f"{path}:Half"
    first, second = ROUTERS.load(name), ROUTERS.load(name)
    assert first is second
    path.write_text(GOOD.replace("0.5", "0.25"))
    assert router_named(name).score(None) == 0.25  # type: ignore[arg-type]
    # Dataclasses with annotations as text look their module up.
    source = GOOD.replace("class Half:", "@dataclass\nclass Half:\n    x: int = 0")
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    path.write_text(f"{head}{source}")
    assert router_named(name).top == 0


BAD_INIT = GOOD.replace("def score", "def __init__(self, x):\n        pass\n\n    def score")


@pytest.mark.parametrize(
    ("source", "name", "problem"),
    [
        (None, "mine.py:Half", "(No such file or directory); repair the code"),
        (GOOD, "mine.py:Whole", "has no attribute 'Whole'"),
        ("class Half(", "mine.py:Half", "(SyntaxError: "),
        ("raise RuntimeError('one\\ntwo')", "mine.py:Half", "(RuntimeError: one two)"),
        ("\x00", "mine.py:Half", "cannot be loaded"),
        (GOOD.replace("Needs.NOTHING", "3"), "mine.py:Half", "does not say what it reads"),
        (GOOD.replace("NOTHING, 0", "NOTHING, -1"), "mine.py:Half", "does not say what it reads"),
        (BAD_INIT, "mine.py:Half", "cannot be made (TypeError: "),
        (None, "nothing_of_that_name:Half", "No module named 'nothing_of_that_name'"),
        (None, "json:Half", "has no attribute 'Half'"),
        (None, "json:JSONDecoder", "is not a router"),
    ],
)
def test_code_that_does_not_work(site: Site, source: str | None, name: str, problem: str) -> None:
    if source is not None:
        file(site.folder, source)
    where = f"{site.folder}/{name}" if ".py" in name else name
    with pytest.raises(UsageError) as caught:
        open_router(Settings(router=where), ScriptedEdge(noise()))
    assert problem in said(caught)


@given(st.text(max_size=12))
def test_any_text_is_a_name_or_is_refused(name: str) -> None:
    """No text is taken for code by accident: both parts are names."""
    if is_code(name):
        rest, _, attribute = name.rpartition(":")
        assert attribute.isidentifier()
        assert rest.endswith(".py") or all(part.isidentifier() for part in rest.split("."))
    assert (code_file(name) is not None) <= is_code(name)


CARD = RouterCard(
    kind="half",
    edge_fingerprint="scripted",
    tokenizer_fingerprint=fingerprint(ByteTokenizer()),
    hidden_size=HIDDEN,
)


def checkpoint(folder: Path, kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    card = msgspec.structs.replace(CARD, kind=kind)
    (folder / CONFIG).write_bytes(msgspec.json.encode(card))
    return folder


def opened(router: Path | str) -> Router:
    return open_router(Settings(router=str(router)), ScriptedEdge(noise()))[0]


def test_a_checkpoint_names_its_kind(site: Site) -> None:
    file(site.folder)
    site.package("halves", "half = mine:Half")
    for kind in ("half", "mine:Half", "../mine.py:Half"):
        assert opened(checkpoint(site.folder / "router", kind)).score(None) == 0.5  # type: ignore[arg-type]


def test_a_download_does_not_say_what_code_to_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's files are where a folder of the user's would be, and yet are not trusted."""
    file(site.folder, "raise AssertionError('it ran')")
    downloaded = checkpoint(site.folder / "snapshot", "../mine.py:Half")
    monkeypatch.setattr("edgewise.opening.checkpoint", lambda name: downloaded)
    for kind in ("../mine.py:Half", "mine:Half", "os:system"):
        checkpoint(downloaded, kind)
        with pytest.raises(UsageError, match="download"):
            opened("owner/router")
        with pytest.raises(UsageError, match="download"):
            router_identity(Settings(router="owner/router"))


@pytest.mark.parametrize("name", ["owner/router", "router", "bundled-edge"])
def test_a_folder_that_only_has_the_name_runs_no_code(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file(site.folder, "raise AssertionError('it ran')")
    folder = site.folder / "work" / name
    folder.mkdir(parents=True)
    checkpoint(folder, f"{site.folder}/mine.py:Half")
    monkeypatch.chdir(site.folder / "work")
    with pytest.raises(EdgewiseError):
        opened(name)
    file(site.folder)
    assert opened(f"./{name}").score(None) == 0.5  # type: ignore[arg-type]


def test_what_a_router_is(site: Site) -> None:
    """The name and the code of one by itself; the card and the weights of a checkpoint."""
    path = file(site.folder)
    name = f"{path}:Half"
    before = identity_named(name)
    assert identity_named(name) == before
    assert len({identity_named(one) for one in ("entropy", "margin", name, "constant:0.5")}) == 4
    trained, copied, other = (
        router_identity(Settings(router=str(checkpoint(site.folder / place, kind))))
        for place, kind in (("a", "../mine.py:Half"), ("b", "../mine.py:Half"), ("c", "entropy"))
    )
    assert trained == copied != other
    (site.folder / "b" / "model.safetensors").write_bytes(b"weights")
    assert router_identity(Settings(router=str(site.folder / "b"))) != trained
    path.write_text(GOOD.replace("0.5", "0.6"))
    assert identity_named(name) != before
    assert router_identity(Settings(router=str(site.folder / "a"))) != trained
