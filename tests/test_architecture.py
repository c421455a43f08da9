"""The architecture: imports go down, functions are short, a name says one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

LAYERS = """
errors
registry events sandbox settings hub
completion addresses providers listening
servers
edge
sampling prompts
grammar
routers wire engines
cloud keys
costs
loop
advice testing gateway options
opening
pair
__init__
server
cli
__main__
lab
lab.rollouts lab.tables lab.wrapped_cloud
lab.evaluation
lab.bench lab.training
lab.commands
"""
"""Packages by layer, from the bottom: one knows those below it, and none beside or above it.

The laboratory (`edgewise_lab`) stands on the product, which knows nothing of it.
"""

PACKAGES = ("edgewise", "edgewise_lab")
LAYER = {name: number for number, line in enumerate(LAYERS.split("\n")) for name in line.split()}
FILES = sorted(SOURCE.rglob("*.py"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}


@cache
def trees() -> dict[Path, ast.Module]:
    """What the files say; parsed where a test reads it, since each process collects all tests."""
    return {path: ast.parse(text) for path, text in TEXTS.items()}


def named(path: Path) -> str:
    """A file's path, for whoever reads of it."""
    return path.relative_to(SOURCE).as_posix()


def layer_name(package: str, name: str = "__init__") -> str:
    """A folder or file of a package."""
    return name if package == "edgewise" else f"lab.{name}".removesuffix(".__init__")


def package_of(path: Path) -> str:
    """The folder of its package that a file lies in, or its own name."""
    package, name = path.relative_to(SOURCE).parts[:2]
    return layer_name(package, name.removesuffix(".py"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Packages that a file imports from, anywhere in it."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f".{one.name}" for one in node.names] if node.module in PACKAGES else [""]
            names += [f"{node.module}{name}" for name in inside]
    for package, *inside in (name.split(".") for name in names):
        if package in PACKAGES:
            found = layer_name(package, *inside[:1])
            yield found if found in LAYER else layer_name(package)


def test_every_package_has_its_layer_and_imports_only_go_down() -> None:
    assert {package_of(path) for path in FILES} == set(LAYER)
    upwards = [
        f"{named(path)} imports {name}"
        for path, tree in trees().items()
        for name in imported(tree)
        if name != package_of(path) and LAYER[name] >= LAYER[package_of(path)]
    ]
    assert not upwards


def test_options_are_met_by_entry_points_alone() -> None:
    """Nothing outside imports one, and no string names one."""
    meeting = [
        named(path)
        for path, tree in trees().items()
        if package_of(path) != "options"
        if "options" in imported(tree) or "edgewise.options" in TEXTS[path]
    ]
    assert not meeting


BUDGET = {
    "edgewise/servers": 1_924,
    "edgewise/options": 2_183,
    "edgewise": 3_297,
    "edgewise/cli": 2_394,
    "edgewise/cloud": 3_903,
    "edgewise/costs": 659,
    "edgewise/edge": 4_505,
    "edgewise/engines": 1_890,
    "edgewise/gateway": 1_610,
    "edgewise/grammar": 962,
    "edgewise/hub": 799,
    "edgewise/keys": 706,
    "edgewise/listening": 712,
    "edgewise/loop": 2_769,
    "edgewise/prompts": 1_108,
    "edgewise/routers": 1_043,
    "edgewise/sandbox": 245,
    "edgewise/server": 3_380,
    "edgewise/testing": 506,
    "edgewise/wire": 305,
    "edgewise_lab": 221,
    "edgewise_lab/bench": 1_156,
    "edgewise_lab/commands": 1_659,
    "edgewise_lab/evaluation": 3_203,
    "edgewise_lab/training": 1_261,
}
"""Lines of each package. To grow one, shrink another: the sums below are budgets too."""

SUMS = {"src/edgewise": 34_900, "src/edgewise_lab": 7_500, "benchmarks": 6_000, "tests": 47_510}
PRODUCT_FILES = 181


def test_every_package_keeps_its_budget() -> None:
    lines: dict[str, int] = defaultdict(int)
    for path, text in TEXTS.items():
        lines["/".join(path.parent.relative_to(SOURCE).parts[:2])] += text.count("\n")
    assert {name for name, count in lines.items() if count > BUDGET.get(name, 0)} == set()
    for folder, most in SUMS.items():
        texts = (path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))
        assert sum(text.count("\n") for text in texts) <= most, folder
    assert sum(named(path).startswith("edgewise/") for path in FILES) <= PRODUCT_FILES


def test_files_and_functions_are_short() -> None:
    assert [named(path) for path, text in TEXTS.items() if len(text.splitlines()) > 500] == []
    lengths = {
        f"{named(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > 60} == {}
    assert np.quantile(list(lengths.values()), 0.9) <= 30


def test_a_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(named(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_libraries_name_no_flags() -> None:
    """What mends an error is named by its setting; the command line has words of its own."""
    told = [
        f"{named(path)}:{node.lineno}"
        for path, tree in trees().items()
        if package_of(path) not in ("cli", "server", "__main__", "lab.commands")
        for call in ast.walk(tree)
        if isinstance(call, ast.Raise) and call.exc is not None
        for node in ast.walk(call.exc)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if " --" in f" {node.value}"
    ]
    assert not told


MOST_QUOTES = 167
"""It only falls: an assertion holds an error's class, its setting and one quoted value."""


def test_few_tests_hold_a_sentence_word_for_word() -> None:
    quotes = [
        f"{path.name}:{text.lineno}"
        for path in Path(__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for text in compared(node)
        if words(text) >= 4
    ]
    assert len(quotes) <= MOST_QUOTES, "\n".join(quotes)


def compared(node: ast.AST) -> Iterator[ast.expr]:
    """Both sides of what an assertion compares, and what an error has to match."""
    if isinstance(node, ast.keyword) and node.arg == "match":
        yield node.value
    elif isinstance(node, ast.Assert):
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare):
                yield from (part.left, *part.comparators)


def words(text: ast.expr) -> int:
    """How many a string has, a value that it is given counting as one."""
    if isinstance(text, ast.Call):
        return max((words(argument) for argument in text.args), default=0)
    if isinstance(text, ast.JoinedStr):
        return sum(words(value) for value in text.values)
    if isinstance(text, ast.Constant):
        return len(text.value.split()) if isinstance(text.value, str) else 0
    return int(isinstance(text, ast.FormattedValue))
