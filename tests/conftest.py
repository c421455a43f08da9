"""Models for every test, written once per process, and a wall around the network."""

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, settings

from edgewise.loop import policy
from tests import models
from tests.deep import CURRENT
from tests.doubles.scripted_engine import ScriptedEngine
from tests.hybrid_models import HybridPaths
from tests.smollm2_file import smollm2_or_skip

# Property tests draw the same few examples in every run. `make test-deep` draws more, at random.
# No example is timed: a busy machine is not a defect.
_UNTIMED = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _UNTIMED, derandomize=True, max_examples=20)
settings.register_profile("deep", _UNTIMED, print_blob=True, max_examples=100)
# pytest tests/test_outside_bytes.py --hypothesis-profile=faults
settings.register_profile("faults", _UNTIMED, print_blob=True, max_examples=2000)
settings.load_profile("same")

# jsonschema would build forty grammars of URIs, which no test needs: seconds in each process.
sys.modules["rfc3987_syntax"] = None

# llama.cpp's threads sleep while they wait for each other, in the commands of tests as well: where
# tests run side by side they would spin, for twice the processor time. OpenMP is not loaded yet.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

TESTS = Path(__file__).parent
# What `make test` leaves to `make test-deep`: tests of the laboratory, by their folder, and
# tests that start a program, by the fixture that starts it. Others that take seconds say so.
DEEP_FOLDERS = {"bench", "benchmarks", "evaluation", "pocket", "smollm2", "training"}
DEEP_FIXTURES = {"browser", "linked", "redis_url"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are cores: tests wait for sockets and processes."""
    return (os.cpu_count() or 1) * 2


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where all tests of a folder would be left out it is not even imported."""
    deep = collection_path.parent == TESTS and collection_path.name in DEEP_FOLDERS
    return True if deep and config.option.markexpr == "not deep" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as deep by folder and by fixture, before `-m "not deep"` looks."""
    for item in items:
        inside = item.path.relative_to(TESTS).parts
        fixtures = getattr(item, "fixturenames", ())
        if inside[0] in DEEP_FOLDERS or not DEEP_FIXTURES.isdisjoint(fixtures):
            item.add_marker("deep")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes is kept: nobody looks for garbage in it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure() -> None:
    """Where this runs in a script's background SIGINT is ignored, by the commands it starts too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let helpers ask for the test that runs."""
    token = CURRENT.set(item)
    try:
        return (yield)
    finally:
        CURRENT.reset(token)


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept of models and of what was sent is not the developer's; commands inherit it.

    A deadline that follows a quick engine's latency would end a consult where a machine is busy.
    Nobody is trusted of the hundred authorities that each client would read, for 45 ms.
    """
    with pytest.MonkeyPatch.context() as patched:
        authority = tmp_path_factory.mktemp("authority") / "nobody.pem"
        trustme.CA().cert_pem.write_to_path(str(authority))
        patched.setenv("SSL_CERT_FILE", str(authority))
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patched.setattr(policy, "SHORTEST_DEADLINE", policy.LONGEST_DEADLINE)
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this process keeps the models of its tests."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that answers from a script."""
    with closing(ScriptedEngine()) as made:
        yield made


@pytest.fixture(scope="session")
def bpe_path(model_folder: Path) -> Path:
    """(a) byte-level BPE."""
    return models.write_byte_level(model_folder / "bpe.gguf")


@pytest.fixture(scope="session")
def spm_path(model_folder: Path) -> Path:
    """(b) sentencepiece with byte fallback and BOS."""
    return models.write_sentencepiece(model_folder / "spm.gguf")


@pytest.fixture(scope="session")
def other_path(model_folder: Path) -> Path:
    """(c) byte-level BPE, another vocabulary than (a)."""
    return models.write_other(model_folder / "other.gguf")


@pytest.fixture(scope="session")
def hybrid_paths(model_folder: Path) -> HybridPaths:
    """(d) recurrent and hybrid models, and one with windows, by kind."""
    return HybridPaths(model_folder)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """(e) a real model in 4 bits, where its package is installed."""
    return smollm2_or_skip()


@pytest.fixture(scope="session")
def onnx_path(model_folder: Path, bpe_path: Path) -> Path:
    """(a) for ONNX Runtime, with hidden states."""
    pytest.importorskip("onnx")
    from pocket.convert.__main__ import convert
    from pocket.convert.weights import read

    return convert(read(bpe_path), "onnx-hidden", model_folder / "onnx")


def _is_local(family: int, address: Any) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True
    host = str(address[0])
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any connection that leaves this machine fails the test."""
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, original: Any = original) -> Any:
            if not _is_local(self.family, address):
                pytest.fail(f"a test tried to connect to {address}")
            return original(self, address)

        monkeypatch.setattr(socket.socket, name, guarded)
