"""Energy: what meters of each kind count, and what is made of it.

NVIDIA's library and Apple's program are doubles here; no test has a real meter.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.bench.energy import EnergyBench, meters
from edgewise_lab.bench.nvml import nvml
from edgewise_lab.bench.powermetrics import Powermetrics, joules_of
from edgewise_lab.bench.rapl import rapl

RANGE = 65_532_610_987


def zone(folder: Path, name: str, microjoules: int) -> Path:
    """A zone as the kernel shows it."""
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return count(folder, microjoules)


def count(folder: Path, microjoules: int) -> Path:
    """Set its counter, all at once."""
    fresh = folder / "fresh"
    fresh.write_text(f"{microjoules}\n")
    os.replace(fresh, folder / "energy_uj")
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A processor's zone, with others beside and within it that would count the same again."""
    folder = zone(tmp_path / "intel-rapl:0", "package-0", 1_000_000)
    zone(folder / "intel-rapl:0:0", "core", 500_000)
    zone(tmp_path / "intel-rapl:0:0", "core", 500_000)
    zone(tmp_path / "intel-rapl:1", "psys", 9_000_000)
    zone(tmp_path / "intel-rapl-mmio:0", "package-0", 1_000_000)
    return folder


def test_packages_are_counted_once(package: Path, tmp_path: Path) -> None:
    second = zone(tmp_path / "intel-rapl:2", "package-1", 7)
    memory = zone(second / "intel-rapl:2:0", "dram", 0)
    meter = rapl(tmp_path)
    assert meter is not None
    assert meter.name == "RAPL (package-0, package-1, dram)"
    assert meter.joules() == 0
    count(package, 3_500_000)
    count(second, 1_000_007)
    count(memory, 250_000)
    assert meter.joules() == pytest.approx(3.75)


def test_a_counter_that_begins_again(package: Path, tmp_path: Path) -> None:
    meter = rapl(tmp_path)
    assert meter is not None
    count(package, RANGE - 1_000_000)
    before = meter.joules()
    count(package, 2_000_000)
    assert meter.joules() - before == pytest.approx(3.0)
    count(package, 4_000_000)
    assert meter.joules() - before == pytest.approx(5.0)


def test_counters_of_root_are_told_with_what_to_do(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def refused(path: Path, *arguments: Any, **named: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(UsageError, match="by root alone; sudo chmod a\\+r"):
        meters(tmp_path)


def test_a_counter_that_holds_no_count(package: Path, tmp_path: Path) -> None:
    (package / "energy_uj").write_text("none\n")
    with pytest.raises(UsageError, match="holds no count"):
        rapl(tmp_path)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any meter but those that a test gives it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("edgewise_lab.bench.nvml.DRIVER", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.usefixtures("alone")
def test_without_a_meter_it_says_what_was_looked_for(tmp_path: Path) -> None:
    assert rapl(tmp_path / "missing") is None
    with pytest.raises(UsageError, match=r"no RAPL zone in .* NVML .* no powermetrics"):
        meters(tmp_path)


class NvmlError(Exception):
    """As the library's."""


class NotSupported(NvmlError):
    """As the library's."""


def library(counters: list[int | None], *, driver: bool = True) -> SimpleNamespace:
    """The library of a machine whose GPUs count so many millijoules; None: one that cannot."""

    def init() -> None:
        if not driver:
            raise NvmlError("Driver Not Loaded")

    def consumed(device: int) -> int:
        found = counters[device]
        if found is None:
            raise NotSupported("Not Supported")
        return found

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVMLError_NotSupported=NotSupported,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(counters),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=consumed,
    )


def test_gpus_that_count_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    counters: list[int | None] = [1_000, None, 2_500]
    monkeypatch.setitem(sys.modules, "pynvml", library(counters))
    meter = nvml()
    assert meter is not None
    assert (meter.name, meter.joules()) == ("NVML (2 GPUs)", 3.5)
    counters[0] = 4_000
    assert meter.joules() == 6.5
    counters[0] = None
    with pytest.raises(UsageError, match="does not tell its energy"):
        meter.joules()
    meter.close()


@pytest.mark.parametrize("found", [library([None]), library([]), library([5], driver=False)])
def test_without_a_gpu_that_counts_there_is_no_meter(
    found: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", found)
    assert nvml() is None


@pytest.mark.usefixtures("alone")
def test_a_gpu_without_the_package_prints_the_install_line(tmp_path: Path) -> None:
    assert nvml(tmp_path / "missing") is None
    with pytest.raises(UsageError, match=r"pip install 'edgewise\[energy\]'"):
        nvml(tmp_path)


def test_the_real_library_has_what_is_asked_of_it() -> None:
    real: Any = pytest.importorskip("pynvml")
    assert all(hasattr(real, name) for name in vars(library([])))
    meter = nvml()
    if meter is not None:
        with closing(meter):
            assert meter.joules() > 0


SAMPLE = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
<key>is_delta</key><true/>
<key>elapsed_ns</key><integer>100000000</integer>
<key>processor</key>
<dict>
<key>cpu_power</key><real>4000</real>
<key>combined_power</key><real>5000</real>
</dict>
</dict>
</plist>
"""


def says(code: str) -> list[str]:
    """A program in the place of powermetrics."""
    return [sys.executable, "-c", f"import sys, time\nsample = {SAMPLE!r}\n{code}"]


def test_samples_of_powermetrics_are_summed() -> None:
    command = says("while True: print(sample, end=chr(0), flush=True); time.sleep(0.01)")
    with closing(Powermetrics(command)) as meter:
        first = meter.joules()
        # 5 W for a tenth of a second each, whole samples.
        assert first / 0.5 == pytest.approx(round(first / 0.5))
        time.sleep(0.05)
        assert meter.joules() >= first + 0.5


@pytest.mark.parametrize(
    "code",
    ["", "sys.exit(1)", "print('Password:', flush=True)", "print('<plist></plist>\\n</plist>')"],
)
def test_powermetrics_that_tells_nothing_is_refused(code: str) -> None:
    with pytest.raises(UsageError, match="tells no power"):
        Powermetrics(says(code))


def test_powermetrics_that_ends_midway_is_noticed() -> None:
    with closing(Powermetrics(says("print(sample, flush=True); time.sleep(0.2)"))) as meter:
        with pytest.raises(UsageError, match="tells no power"):
            meter.joules()
        # It says so again, at once.
        with pytest.raises(UsageError, match="tells no power"):
            meter.joules()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("combined_power", "other"),
        ("5000", "-1"),
        ("5000", "nan"),
        ("<real>5000</real>", "<string>much</string>"),
        ("processor", "elsewhere"),
        ("<dict>\n<key>is_delta", "<array>\n<key>is_delta"),
    ],
)
def test_a_sample_that_says_no_power(old: str, new: str) -> None:
    assert joules_of(SAMPLE.encode()) == pytest.approx(0.5)
    assert joules_of(SAMPLE.replace(old, new).encode()) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_sample_or_none(data: bytes) -> None:
    assert joules_of(data) is None
    found = joules_of(SAMPLE.encode()[:-20] + data)
    assert found is None or math.isfinite(found)


@contextmanager
def counting_up(package: Path, watts: float) -> Iterator[Callable[[float], None]]:
    """A machine that takes so much all the time; yields what takes some joules more."""
    begun, extra, stop = time.monotonic(), [0.0], threading.Event()
    written = threading.Event()

    def count_up() -> None:
        while not stop.wait(0.002):
            joules = watts * (time.monotonic() - begun) + extra[0]
            # It begins again within the test.
            count(package, (RANGE - 1_000_000 + int(1e6 * joules)) % RANGE)
            written.set()

    def more(joules: float) -> None:
        extra[0] += joules
        for _ in range(2):
            # The write that was under way may be without them.
            written.clear()
            assert written.wait(60)

    thread = threading.Thread(target=count_up)
    thread.start()
    try:
        yield more
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("alone")
def test_what_tokens_take_beyond_rest(package: Path, tmp_path: Path) -> None:
    decoder = Decoder(
        ScriptedEdge(replying("x" * 30, prompt="a")), router=Constant(0.0), policy=Policy()
    )
    asked: dict[str, list[int]] = {"dear": [], "cheap": []}

    def asking(name: str, joules: float, more: Callable[[float], None]) -> Any:
        def ask(number: int) -> Any:
            asked[name].append(number)
            more(10 * joules)
            return decoder.generate([97], max_tokens=10)

        return ask

    done: list[None] = []
    with counting_up(package, 20.0) as more:
        systems = {name: asking(name, j, more) for name, j in (("dear", 50.0), ("cheap", 10.0))}
        bench = EnergyBench(meters(tmp_path), systems)
        found = bench.measure(3, seconds=0.3, rounds=3, done=lambda: done.append(None))
    assert found.meters == ("RAPL (package-0)",)
    assert len(done) == 9
    # A busy machine's thread may count late.
    assert found.idle.median == pytest.approx(20.0, rel=0.6)
    dear, cheap = found.systems
    assert dear.joules.median == pytest.approx(50.0, rel=0.1)
    assert cheap.joules.median == pytest.approx(10.0, rel=0.2)
    assert cheap.joules.low <= cheap.joules.median <= cheap.joules.high
    for one in found.systems:
        assert one.tokens == 10 * one.answers
        assert one.cloud_tokens == 0
        # In order, from one block to the next.
        assert asked[one.system][1:] == [n % 3 for n in range(one.answers)]
