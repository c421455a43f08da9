"""When `make` compiles llama.cpp: with what stands for pip."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = """#!/bin/sh
case "$*" in "-m venv "*) mkdir -p "$3" ;; *) echo "$CMAKE_ARGS | $*" >>pip.log ;; esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in which nothing can be installed."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "cmake", tmp_path / "cmake")
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "llama_wheel.py", tmp_path / "deploy")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PIP)
    python.chmod(0o755)
    return tmp_path


def compiled(clone: Path, goal: str, arguments: str | None = None) -> list[str]:
    """With what llama-cpp-python was compiled, each time that it was."""
    return [line for line in ran(clone, goal, arguments) if "--no-binary llama-cpp-python" in line]


def built(clone: Path) -> int:
    """How often a llama.cpp for this processor was built."""
    lines = ran(clone, "native")
    assert not any("--no-binary" in line for line in lines)
    return sum(line.endswith("deploy/llama_wheel.py --native build/native") for line in lines)


def ran(clone: Path, goal: str, arguments: str | None = None) -> list[str]:
    """What Python was run with, behind `CMAKE_ARGS`."""
    log = clone / "pip.log"
    log.unlink(missing_ok=True)
    variables = {name: text for name, text in os.environ.items() if name != "CMAKE_ARGS"}
    given = {} if arguments is None else {"CMAKE_ARGS": arguments}
    subprocess.run(
        ["make", "-s", goal, f"BIN={clone / 'bin'}", f"PYTHON={clone / 'bin' / 'python'}"],
        cwd=clone,
        env=variables | given,
        check=True,
        timeout=60,
    )
    return log.read_text().splitlines() if log.exists() else []


def test_extras_that_are_installed_exist() -> None:
    """A name that pip does not know installs nothing, with a warning alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [(ROOT / name).read_text() for name in ("Makefile", "README.md", "CONTRIBUTING.md")]
    asked = re.findall(r"'\.\[([a-z,-]+)\]'", "\n".join(texts))
    assert asked
    assert {name for each in asked for name in each.split(",")} <= {
        *project["optional-dependencies"]
    }


def test_other_arguments_compile_it_again(clone: Path) -> None:
    (first,) = compiled(clone, "install", "-DGGML_CUDA=on")
    told, pip = first.split(" | ")
    assert told.endswith(" -DGGML_CUDA=on")
    assert "llama-only.cmake" in told
    assert "--no-cache-dir --force-reinstall" in pip
    assert compiled(clone, "install", "-DGGML_CUDA=on") == []
    assert len(compiled(clone, "install", "-DGGML_VULKAN=on")) == 1
    assert compiled(clone, "install") == []


def test_without_arguments_it_is_built_for_this_processor(clone: Path) -> None:
    assert [built(clone), built(clone)] == [1, 0]
    assert len(compiled(clone, "native", "-DGGML_CUDA=on")) == 1
    assert [built(clone), built(clone)] == [1, 0]


def test_another_release_is_compiled(clone: Path) -> None:
    (first,) = compiled(clone, "native", "-DGGML_CUDA=on")
    assert "llama-cpp-python==0.3.36" in first
    project = clone / "pyproject.toml"
    project.write_text(project.read_text().replace("==0.3.36", "==0.3.37"))
    (later,) = compiled(clone, "native", "-DGGML_CUDA=on")
    assert "llama-cpp-python==0.3.37" in later
    assert built(clone) == 1
    project.write_text(re.sub("xllamacpp==[0-9.]+", "xllamacpp==2099.1", project.read_text()))
    assert built(clone) == 1


def test_the_tests_that_it_names_are_there() -> None:
    named = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
