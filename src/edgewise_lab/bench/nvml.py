"""Energy of NVIDIA's GPUs, by the counter of their driver (NVML; Volta and later)."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from edgewise.errors import UsageError

INSTALL = "pip install 'edgewise[energy]'"

DRIVER = Path("/proc/driver/nvidia")
"""There where Linux drives such a GPU."""


class Nvml:
    """Implements `EnergyMeter`: all GPUs of this machine that count, whoever uses them."""

    def __init__(self, library: Any, devices: Sequence[Any]) -> None:
        self.name = f"NVML ({len(devices)} GPU{'s' if len(devices) > 1 else ''})"
        self._library, self._devices = library, devices

    def joules(self) -> float:
        try:
            counted = map(self._library.nvmlDeviceGetTotalEnergyConsumption, self._devices)
            return sum(counted) / 1000
        except self._library.NVMLError as error:
            raise UsageError(
                f"A GPU does not tell its energy any more ({error})", hint="try again"
            ) from error

    def close(self) -> None:
        self._library.nvmlShutdown()


def nvml(driver: Path = DRIVER) -> Nvml | None:
    """The meter; None where there is no such GPU, or none that counts.

    Raises `UsageError` where there is one and the package that reads it is missing.
    """
    try:
        library: Any = import_module("pynvml")
    except ModuleNotFoundError as error:
        if driver.exists():
            raise UsageError("The energy of an NVIDIA GPU needs NVML", hint=INSTALL) from error
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    devices = [
        device
        for device in map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        if _counts(library, device)
    ]
    if devices:
        return Nvml(library, devices)
    library.nvmlShutdown()
    return None


def _counts(library: Any, device: Any) -> bool:
    try:
        library.nvmlDeviceGetTotalEnergyConsumption(device)
    except library.NVMLError_NotSupported:
        return False
    return True
