"""The wheel of llama.cpp: whom it is built for, where it may be installed, what it needs."""

import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from deploy import llama_wheel
from edgewise.edge.llamacpp import library as binding

AVX2 = {"sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"}
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}


@pytest.mark.parametrize(
    ("machine", "able", "kinds"),
    [
        ("x86_64", {"sse4_2"}, ["x64"]),
        ("x86_64", AVX2 | {"sha_ni"}, ["haswell"]),
        ("x86_64", AVX2 | {"avx_vnni"}, ["alderlake"]),
        ("x86_64", AVX512 - {"avx512dq"}, ["haswell"]),
        ("x86_64", AVX512 | {"avx512_vnni"}, ["skylakex"]),
        ("x86_64", AVX512 | {"avx_vnni", "avx512_vnni", "avx512vbmi"}, ["icelake"]),
        ("x86_64", set(llama_wheel.KINDS["zen4"]) | {"amx_tile"}, ["zen4"]),
        ("x86_64", set(), []),
        ("aarch64", {"asimd", "asimddp"}, []),
    ],
)
def test_the_kind_at_hand_is_the_best_that_runs(
    machine: str, able: set[str], kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(binding, "processor", lambda: frozenset(able))
    assert llama_wheel.kind_at_hand() == kinds


@pytest.mark.skipif(sys.platform != "linux", reason="tags differ")
@pytest.mark.parametrize("native", [True, False])
def test_the_wheel_may_be_installed_here(tmp_path: Path, native: bool) -> None:
    """And one for this processor on no index: none takes its tag."""
    for name in ("libllama.so", "LICENSE"):
        (tmp_path / name).write_text(name)
    libraries = [tmp_path / "libllama.so"]
    wheel = llama_wheel.pack(tmp_path, libraries, tmp_path / "LICENSE", native=native)
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("edgewise-llama", binding.VERSIONS["edgewise-llama"])
    assert tags & set(sys_tags())
    assert any(tag.platform.startswith("linux_") for tag in tags) == native
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read("edgewise_llama/libllama.so") == b"libllama.so"
