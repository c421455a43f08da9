"""Which llama.cpp is used, and what is said where there is none that fits."""

import _ctypes
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgewise.edge.llamacpp import library as binding
from edgewise.errors import UsageError
from tests.programs import Done, python

ASK = ("run", "Where is Lisbon?", "--cloud", "none", "--max-tokens", "8")
REAL = binding.find_spec
HIDE = "import sys\nfor name in {}:\n    sys.modules[name] = None\n"

Run = Callable[..., Done]


@pytest.fixture
def edgewise_with(tmp_path: Path) -> Run:
    """Runs the command where the packages in `tmp_path` are found first, and `hidden` never."""

    def run(*arguments: str, hidden: tuple[str, ...] = ()) -> Done:
        (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden))
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        return python("-m", "edgewise", *arguments, code=None, PYTHONPATH=os.pathsep.join(paths))

    return run


def install(folder: Path, package: str, release: str, files: dict[str, str]) -> Path:
    """Put a package where it is found first."""
    info = folder / f"{package.replace('-', '_')}-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {release}\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return info


def said(done: "subprocess.CompletedProcess[str]") -> str:
    """The one sentence of a command that ended as for a user's mistake."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.fixture
def prebuilt() -> Path:
    """The library of the wheel."""
    pytest.importorskip("xllamacpp", reason="needs the wheel")
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("xllamacpp*.so"))


@pytest.mark.parametrize(
    ("installed", "system", "used"),
    [
        (("xllamacpp",), "linux", "xllamacpp"),
        (("xllamacpp", "edgewise_llama"), "linux", "edgewise-llama"),
        (("xllamacpp", "edgewise_llama", "llama_cpp"), "linux", "llama-cpp-python"),
        (("xllamacpp", "edgewise_llama"), "win32", "edgewise-llama"),
        (("xllamacpp",), "win32", None),  # its library exports no call there
    ],
)
def test_what_fits_better_goes_first(
    installed: tuple[str, ...], system: str, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr(sys, "platform", system)
    if used is not None:
        assert binding.package() == used
        return
    with pytest.raises(UsageError, match=r"not installed.*edgewise\[native\]"):
        binding.package()


@pytest.mark.deep
def test_an_answer_comes_without_llama_cpp_python(prebuilt: Path, edgewise_with: Run) -> None:
    hidden = ("llama_cpp", "edgewise_llama")
    done = edgewise_with(*ASK, hidden=hidden)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert done.stdout.strip()
    assert "llama.cpp (xllamacpp" in edgewise_with("doctor", hidden=hidden).stdout


def test_the_structs_are_those_of_the_prebuilt_library(prebuilt: Path) -> None:
    """Sizes that a C compiler says of them."""
    calls = binding.load_library(prebuilt)
    sizes = [ctypes.sizeof(calls.llama_model_params), ctypes.sizeof(calls.llama_context_params)]
    assert [*sizes, ctypes.sizeof(calls.llama_batch)] == [80, 168, 56]
    assert binding.llama_context_params.embeddings.offset == 136


def test_another_library_is_refused_before_it_is_called() -> None:
    with pytest.raises(UsageError, match="does not export"):
        binding.load_library(Path(_ctypes.__file__))


BROKEN = {
    "llama_cpp": (
        "llama-cpp-python",
        {"llama_cpp/__init__.py": "raise RuntimeError('no libllama')"},
    ),
    "edgewise_llama": (
        "edgewise-llama",
        {"edgewise_llama/__init__.py": "", "edgewise_llama/libllama.so": "none"},
    ),
    "xllamacpp": (
        "xllamacpp",
        {"xllamacpp/__init__.py": "", "xllamacpp/xllamacpp.abi3.so": "none"},
    ),
}
ORDER = tuple(BROKEN)
MENDS = {"edgewise_llama": "pip uninstall edgewise-llama"}
"""It is on no index, where another could take its name."""


@pytest.mark.deep
@pytest.mark.parametrize("module", BROKEN)
def test_a_library_that_cannot_be_loaded_or_is_another_is_a_sentence(
    module: str, tmp_path: Path, edgewise_with: Run
) -> None:
    package, files = BROKEN[module]
    own, hidden = binding.VERSIONS[package], ORDER[: ORDER.index(module)]
    info = install(tmp_path, package, own, files)
    told = said(edgewise_with(*ASK, hidden=hidden))
    assert told.startswith(f"edgewise: The llama.cpp of {package} cannot be loaded (")
    assert MENDS.get(module, f"{package}==") in told
    assert edgewise_with("--help", hidden=hidden).returncode == 0
    checked = edgewise_with("doctor", hidden=hidden)
    assert checked.returncode == 1
    assert re.search(rf"fail +engine +The llama.cpp of {package}", checked.stdout)
    shutil.rmtree(info)
    install(tmp_path, package, "0.0.1", files)
    told = said(edgewise_with(*ASK, hidden=hidden))
    assert f"{package} {own}, and 0.0.1" in told
    assert MENDS.get(module, f"{package}==") in told


def test_none_at_all_is_a_sentence(edgewise_with: Run) -> None:
    nothing = ORDER
    assert "edgewise[native]" in said(edgewise_with(*ASK, hidden=nothing))
    assert edgewise_with("--help", hidden=nothing).returncode == 0
    assert edgewise_with("--version", hidden=nothing).returncode == 0


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's library is loaded with the first call."""
    monkeypatch.setattr(
        binding, "find_spec", lambda name: REAL(name) if name == "xllamacpp" else None
    )
    monkeypatch.setattr(binding, "llama_cpp", type(binding.llama_cpp)())


@pytest.mark.usefixtures("anew")
def test_a_missing_runtime_of_openmp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, *, backends: bool) -> None:
        raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(binding, "load_library", missing)
    with pytest.raises(UsageError, match="apt-get install libgomp1"):
        binding.llama_cpp.llama_backend_init()


@pytest.mark.usefixtures("anew")
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux says what a processor can")
def test_a_processor_that_lacks_instructions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "processor", lambda: frozenset({"fma", "sse4_2"}))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(UsageError, match="avx2"):
        binding.llama_cpp.llama_backend_init()
