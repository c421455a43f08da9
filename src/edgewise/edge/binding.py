"""llama.cpp's calls, of the library that is installed here; it is loaded when one is first used.

Where somebody installed llama-cpp-python it is that: it was compiled for this processor or its GPU.
Else it is that of edgewise-llama, which `deploy/llama_wheel.py` builds for this processor or for
each kind, or the prebuilt one of xllamacpp, which has what all of them can run.
"""

import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgewise.edge import libllama
from edgewise.errors import UsageError

NATIVE, FITTING, PREBUILT = "llama-cpp-python", "edgewise-llama", "xllamacpp"
VERSIONS = {NATIVE: "0.3.36", FITTING: "2026.10.11549", PREBUILT: "2026.10.11549"}
"""What the structs that are handed over were written for."""

_MODULES = {NATIVE: "llama_cpp", FITTING: "edgewise_llama", PREBUILT: "xllamacpp"}
"""First come, first used."""

_COMPILE = "pip install 'edgewise[native]'"
# GCC before 13 miscompiles llama.cpp's AMX kernels, and that ends the process.
_WITHOUT_AMX = 'CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON"'
_REPAIR = "pip install --force-reinstall {}=={}"
# No index has it.
_REBUILD = "pip uninstall edgewise-llama leaves the prebuilt one; make native then builds another"
_WANTED = ("avx2", "fma", "f16c", "bmi2")  # by the prebuilt library on x86-64


class _Library:
    """Loads the library when a call is first asked for. Raises `UsageError` where there is none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "_calls" not in vars(self):
            self._calls = _load(package())
        call = getattr(self._calls, name)
        setattr(self, name, call)
        return call


llama_cpp: Any = _Library()


def package() -> str:
    """The distribution that brings llama.cpp here. Raises `UsageError` where none does."""
    for name, module in _MODULES.items():
        # On Windows xllamacpp's library hands out nothing but its own module.
        if find_spec(module) is not None and (name, sys.platform) != (PREBUILT, "win32"):
            return name
    raise UsageError("llama.cpp is not installed", hint=how_to_compile())


def build() -> str:
    """Which package brings llama.cpp, and in which version. Raises `UsageError`."""
    name = package()
    return f"{name} {_version(name)}"


def how_to_compile() -> str:
    """What to do for a llama.cpp of this machine's own."""
    command = f"{_WITHOUT_AMX} {_COMPILE}" if "amx_tile" in processor() else _COMPILE
    return f"{command} compiles one for this machine"


def is_slower() -> bool:
    """Whether the library leaves instructions unused that this processor has and a build would."""
    said = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    able = processor()
    return package() == PREBUILT and any(
        instructions in able and f"{name} = 1" not in said
        for instructions, name in (("avx512f", "AVX512"), ("asimddp", "DOTPROD"))
    )


def processor() -> frozenset[str]:
    """What Linux says that the processor can; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    told = (line.partition(":") for line in lines)
    return next(
        (frozenset(value.split()) for key, _, value in told if key.strip() in _FLAGS), frozenset()
    )


def _load(name: str) -> Any:
    """The calls of a package's library. Raises `UsageError`."""
    if (found := _version(name)) != VERSIONS[name]:
        raise UsageError(
            f"llama.cpp comes with {name} {VERSIONS[name]}, and {found} is installed",
            hint=_how_to_repair(name),
        )
    if name == PREBUILT:
        _require_instructions()
    # What llama-cpp-python raises where its library is missing or broken is its own affair.
    causes = Exception if name == NATIVE else (OSError, UsageError)
    try:
        if name == NATIVE:
            return import_module(_MODULES[name])
        return libllama.load(_library(name), backends=name == FITTING)
    except causes as error:
        raise _unloaded(name, str(error)) from error


def _how_to_repair(name: str) -> str:
    return _REBUILD if name == FITTING else _REPAIR.format(name, VERSIONS[name])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _library(name: str) -> Path:
    """The library in a package: found, not imported."""
    spec = find_spec(_MODULES[name])
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    # Of xllamacpp the build for Python without a lock has a name of its own.
    stem = "*llama." if name == FITTING else "xllamacpp*."
    found = (path for path in folder.glob(f"{stem}*") if path.suffix in _SUFFIXES)
    return next(found, folder / "libllama.so")


def _require_instructions() -> None:
    """It would end the process. Raises `UsageError`."""
    known = processor() if platform.machine() in ("x86_64", "AMD64") else frozenset()
    if known and (missing := [name for name in _WANTED if name not in known]):
        raise UsageError(
            f"The llama.cpp of {PREBUILT} needs a processor with {missing[0]}",
            hint=how_to_compile(),
        )


_SUFFIXES = (".so", ".dylib", ".dll")
_FLAGS = ("flags", "Features")


def _unloaded(name: str, reason: str) -> UsageError:
    hint = _how_to_repair(name)
    if "libgomp" in reason:
        hint = "install OpenMP's runtime, on Debian and Ubuntu: apt-get install libgomp1"
    return UsageError(f"The llama.cpp of {name} cannot be loaded ({reason.rstrip('.')})", hint=hint)
