"""Energy of Apple's processors, by the system's own `powermetrics`, which only root may run."""

import math
import plistlib
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from xml.parsers.expat import ExpatError

from edgewise.errors import UsageError

COMMAND = ("sudo", "-n", "powermetrics", "--samplers", "cpu_power", "-f", "plist", "-i", "100")

_END = b"</plist>"
_MOST = 1 << 20
_SECONDS = 15.0


class Powermetrics:
    """Implements `EnergyMeter`: processor, graphics and neural engine, by samples of 100 ms.

    `joules` waits for the sample that is under way.
    """

    name = "powermetrics (CPU, GPU, ANE)"

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Raises `UsageError` where it says nothing."""
        # Without a shell.
        self._process = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        self._told = threading.Condition()
        self._sum, self._samples = 0.0, 0
        self._ended = self._stopped = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        try:
            self.joules()
        except UsageError:
            self.close()
            raise

    def joules(self) -> float:
        with self._told:
            wanted = self._samples + 1
            self._told.wait_for(lambda: self._ended or self._samples >= wanted, _SECONDS)
            if self._samples < wanted:
                raise UsageError(
                    "powermetrics tells no power of this machine",
                    hint="run `sudo -v` first, which lets it start, and try again",
                )
            return self._sum

    def close(self) -> None:
        self._stopped = True
        # Where it is root's it ends at its next sample, which nobody takes any more.
        with suppress(PermissionError):
            self._process.terminate()
        self._thread.join(_SECONDS)
        self._process.wait(_SECONDS)

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            held = bytearray()
            while not self._stopped and (line := output.readline(_MOST)):
                held += line
                if line.strip() == _END or len(held) > _MOST:
                    found = joules_of(bytes(held))
                    held.clear()
                    if found is None:
                        break
                    with self._told:
                        self._sum += found
                        self._samples += 1
                        self._told.notify_all()
        with self._told:
            self._ended = True
            self._told.notify_all()


def powermetrics() -> Powermetrics | None:
    """The meter; None where the system has none. Raises `UsageError` where it may not be run."""
    return Powermetrics() if shutil.which("powermetrics") else None


def joules_of(sample: bytes) -> float | None:
    """Energy of one sample, a property list; None for what is none."""
    try:
        told: Any = plistlib.loads(sample.strip(b"\0\n"), fmt=plistlib.FMT_XML)
        # Milliwatts, and nanoseconds that they were measured for.
        found = float(told["processor"]["combined_power"]) * float(told["elapsed_ns"]) / 1e12
    except (ExpatError, ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return None
    return found if math.isfinite(found) and found >= 0 else None
