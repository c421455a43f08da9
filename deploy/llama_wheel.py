"""Build `edgewise-llama`: a wheel that carries llama.cpp for whatever processor it is run on.

    python deploy/llama_wheel.py [OUT]

Needs Edgewise, a C++ compiler, cmake and ninja. The source is that in the sdist of xllamacpp, whose
structs `edge/libllama.py` has. ggml's CPU backend is built once for each kind of processor, and
what the one at hand can run is found when it is loaded. OpenMP is left out, so that no runtime has
to be there; so is AMX, which GCC before 13 miscompiles.
"""

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edgewise.edge.binding import FITTING, PREBUILT, VERSIONS

KINDS = ("x64", "haswell", "alderlake", "skylakex", "icelake", "zen4")
"""Of x86-64. The others that llama.cpp knows differ little from one of these, or have AMX."""

_KIND = re.compile(r"^ *ggml_add_cpu_backend_variant\((\w+).*\)$", re.MULTILINE)
_MODULE = "edgewise_llama"
_OPTIONS = (
    *("BUILD_SHARED_LIBS=ON", "CMAKE_BUILD_TYPE=Release", "CMAKE_PLATFORM_NO_VERSIONED_SONAME=ON"),
    *("CMAKE_BUILD_WITH_INSTALL_RPATH=ON", "GGML_NATIVE=OFF", "GGML_OPENMP=OFF"),
    *("GGML_BACKEND_DL=ON", "GGML_CPU_ALL_VARIANTS=ON"),
    *(f"LLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TOOLS", "SERVER", "EXAMPLES", "TESTS")),
    *("LLAMA_BUILD_APP=OFF", "LLAMA_CURL=OFF"),
)
_METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: llama.cpp's library for Edgewise, prebuilt for any processor
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.11
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: edgewise\nRoot-Is-Purelib: false\nTag: {tag}\n"


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        source = fetch(Path(work))
        libraries = compile_all(source, Path(work) / "build")
        out.mkdir(parents=True, exist_ok=True)
        print(pack(out, libraries, source / "LICENSE"))


def fetch(folder: Path) -> Path:
    """llama.cpp's source, with the wanted kinds of processors alone."""
    pinned = f"{PREBUILT}=={VERSIONS[PREBUILT]}"
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PREBUILT)
    _run(*pip, "--dest", str(folder), pinned)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob("*/thirdparty/llama.cpp")
    listed = source / "ggml" / "src" / "CMakeLists.txt"
    listed.write_text(_KIND.sub(_wanted, listed.read_text()))
    return source


def _wanted(found: re.Match[str]) -> str:
    on_arm = platform.machine() not in ("x86_64", "AMD64")
    return found[0] if on_arm or found[1] in KINDS else ""


def compile_all(source: Path, build: Path) -> Sequence[Path]:
    """The libraries, each of which finds the others beside it."""
    beside = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    options = [*_OPTIONS, f"CMAKE_INSTALL_RPATH={beside}"]
    _run("cmake", "-G", "Ninja", "-S", str(source), "-B", str(build), *(f"-D{o}" for o in options))
    _run("ninja", "-C", str(build), "llama")
    return sorted(path for path in (build / "bin").iterdir() if path.suffix in (".so", ".dylib"))


def pack(out: Path, libraries: Sequence[Path], license_file: Path) -> Path:
    """Write the wheel."""
    version = VERSIONS[FITTING]
    tag = f"py3-none-{_platform()}"
    info = f"{_MODULE}-{version}.dist-info"
    files = {
        f"{_MODULE}/__init__.py": b'"""llama.cpp\'s library, for Edgewise."""\n',
        **{f"{_MODULE}/{path.name}": path.read_bytes() for path in libraries},
        f"{info}/licenses/LICENSE": license_file.read_bytes(),
        f"{info}/METADATA": _METADATA.format(name=FITTING, version=version).encode(),
        f"{info}/WHEEL": _WHEEL.format(tag=tag).encode(),
    }
    record = "".join(f"{name},{_hashed(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = out / f"{_MODULE}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return wheel


def _hashed(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def _platform() -> str:
    """Where the wheel may be installed: what was built here needs this C library or a later one."""
    if sys.platform == "darwin":
        return (
            f"macosx_{os.environ.get('MACOSX_DEPLOYMENT_TARGET', '13.0').replace('.', '_')}_arm64"
        )
    if sys.platform == "win32":
        return "win_amd64"
    return f"manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is not installed")
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
