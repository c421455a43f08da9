"""Build `edgewise-llama`: a wheel that carries llama.cpp for whatever processor it is run on.

    python deploy/llama_wheel.py [--native] [OUT]

Needs Edgewise and a C++ compiler; cmake and ninja come from the package index. The source is that
in the sdist of xllamacpp, whose structs `edge/llamacpp/library.py` has. ggml's CPU backend is built
once for each kind of processor, and what the one at hand can run is found when it is loaded; with
`--native` it is built for the kind at hand alone, and refused elsewhere. OpenMP is left out, so
that no runtime has to be there; so is AMX, which GCC before 13 miscompiles.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edgewise.edge.llamacpp import library as binding
from edgewise.edge.llamacpp.library import FITTING, PREBUILT, VERSIONS

_COMPILERS = ("c++", "g++", "clang++")
_HASWELL = ("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2")
_SKYLAKE = (*_HASWELL, "avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw")
_ICELAKE = (*_SKYLAKE, "avx512vbmi", "avx512_vnni")
KINDS = {
    "x64": (),
    "haswell": _HASWELL,
    "alderlake": (*_HASWELL, "avx_vnni"),
    "skylakex": _SKYLAKE,
    "icelake": _ICELAKE,
    "zen4": (*_ICELAKE, "avx512_bf16"),
}
"""Of x86-64, the best last, with Linux's words for what they need. The others that llama.cpp knows
differ little from one of these, or have AMX."""

_KIND = re.compile(r"^ *ggml_add_cpu_backend_variant\((\w+).*\)$", re.MULTILINE)
_MODULE = "edgewise_llama"
_OPTIONS = (
    *("BUILD_SHARED_LIBS=ON", "CMAKE_BUILD_TYPE=Release", "CMAKE_PLATFORM_NO_VERSIONED_SONAME=ON"),
    *("CMAKE_BUILD_WITH_INSTALL_RPATH=ON", "GGML_OPENMP=OFF"),
    *(f"LLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TOOLS", "SERVER", "EXAMPLES", "TESTS")),
    *("LLAMA_BUILD_APP=OFF", "LLAMA_CURL=OFF"),
    # Those of GCC 12's own headers fill thousands of lines.
    *("GGML_ALL_WARNINGS=OFF", "LLAMA_ALL_WARNINGS=OFF"),
)
# Not `GGML_NATIVE` on x86-64: what GCC 12 tunes for a Sapphire Rapids decodes slower there.
_OF_KINDS = ("GGML_NATIVE=OFF", "GGML_BACKEND_DL=ON", "GGML_CPU_ALL_VARIANTS=ON")
_OF_THIS = ("GGML_NATIVE=ON",)
_TOOLS = ("cmake>=3.28,<5", "ninja>=1.11,<2")
_METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: llama.cpp's library for Edgewise, built for {processor}
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.11
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: edgewise\nRoot-Is-Purelib: false\nTag: {tag}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default="dist", help="a folder")
    parser.add_argument("--native", action="store_true", help="for this processor alone")
    options = parser.parse_args()
    _require_compiler()
    with tempfile.TemporaryDirectory() as work:
        tools = install_tools(Path(work) / "tools")
        wanted = kind_at_hand() if options.native else tuple(KINDS)
        source = fetch(Path(work), wanted)
        processors = _OF_KINDS if wanted else _OF_THIS
        libraries = compile_all(source, Path(work) / "build", tools, processors)
        options.out.mkdir(parents=True, exist_ok=True)
        print(pack(options.out, libraries, source / "LICENSE", native=options.native))


def kind_at_hand() -> Sequence[str]:
    """One of `KINDS`, or none where llama.cpp has to see for itself: on ARM, and without Linux."""
    able = binding.processor() if _on_x86() else frozenset[str]()
    return [kind for kind, needs in KINDS.items() if able and able.issuperset(needs)][-1:]


def _on_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _require_compiler() -> None:
    if not any(map(shutil.which, filter(None, (os.environ.get("CXX"), *_COMPILERS)))):
        sys.exit("A C++ compiler is missing: on Debian and Ubuntu, apt-get install g++")


def install_tools(folder: Path) -> Path:
    """The folder of cmake and ninja, in an environment of their own."""
    venv.create(folder, with_pip=True)
    tools = folder / "bin"
    _run(str(tools / "python"), "-m", "pip", "install", "--quiet", *_TOOLS)
    return tools


def fetch(folder: Path, wanted: Sequence[str]) -> Path:
    """llama.cpp's source, with the wanted kinds of x86-64 alone."""
    pinned = f"{PREBUILT}=={VERSIONS[PREBUILT]}"
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PREBUILT)
    _run(*pip, "--dest", str(folder), pinned)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        # Python before 3.11.4, as Debian 12 has it, knows no filters.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)  # noqa: S202
    (source,) = folder.glob("*/thirdparty/llama.cpp")
    listed = source / "ggml" / "src" / "CMakeLists.txt"
    if _on_x86():
        text = _KIND.sub(lambda kind: kind[0] if kind[1] in wanted else "", listed.read_text())
        listed.write_text(text)
    return source


def compile_all(
    source: Path, build: Path, tools: Path, processors: Sequence[str]
) -> Sequence[Path]:
    """The libraries, each of which finds the others beside it."""
    beside = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    named = (*_OPTIONS, *processors, f"CMAKE_INSTALL_RPATH={beside}")
    options = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", *(f"-D{o}" for o in named))
    _run(str(tools / "cmake"), "-S", str(source), "-B", str(build), *options)
    _run(str(tools / "cmake"), "--build", str(build), "--target", "llama")
    return sorted(path for path in (build / "bin").iterdir() if path.suffix in (".so", ".dylib"))


def pack(out: Path, libraries: Sequence[Path], license_file: Path, *, native: bool) -> Path:
    """Write the wheel."""
    version = VERSIONS[FITTING]
    processor = "the processor that it was built on" if native else "any processor"
    metadata = _METADATA.format(name=FITTING, version=version, processor=processor)
    tag = f"py3-none-{_this_platform() if native else _platform()}"
    info = f"{_MODULE}-{version}.dist-info"
    files = {
        f"{_MODULE}/__init__.py": b'"""llama.cpp\'s library, for Edgewise."""\n',
        **{f"{_MODULE}/{path.name}": path.read_bytes() for path in libraries},
        f"{info}/licenses/LICENSE": license_file.read_bytes(),
        f"{info}/METADATA": metadata.encode(),
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


def _this_platform() -> str:
    """The tag of what no index takes."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


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
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"{Path(command[0]).name} failed, and said why above")


if __name__ == "__main__":
    main()
