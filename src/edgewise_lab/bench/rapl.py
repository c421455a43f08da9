"""Energy by the counters of Intel's and AMD's processors, as Linux shows them (RAPL, powercap)."""

from pathlib import Path

from edgewise.errors import UsageError

POWERCAP = Path("/sys/class/powercap")

_ZONES = ("intel-rapl:[0-9]", "intel-rapl:[0-9][0-9]")
_PACKAGE, _MEMORY = "package", "dram"


class Rapl:
    """Implements `EnergyMeter`: processor packages, and memory where it is counted apart.

    A counter begins again at its `max_energy_range_uj`, after some minutes under load: it must be
    read more often than that. What else runs on the machine is counted too.
    """

    def __init__(self, folders: list[Path]) -> None:
        """`folders` are zones, none within another."""
        self.name = "RAPL (" + ", ".join(_name(folder) for folder in folders) + ")"
        self._counters = [_Counter(folder) for folder in folders]

    def joules(self) -> float:
        return sum(counter.microjoules() for counter in self._counters) / 1e6

    def close(self) -> None:
        """Files are opened for each reading."""


def rapl(root: Path = POWERCAP) -> Rapl | None:
    """The meter; None where the machine has none. Raises `UsageError` for one out of reach."""
    try:
        tops = sorted(zone for pattern in _ZONES for zone in root.glob(pattern))
        # A zone for the whole platform holds the packages, and packages hold their cores.
        packages = [zone for zone in tops if _name(zone).startswith(_PACKAGE)]
        inner = [zone for top in packages for zone in sorted(top.glob(f"{top.name}:*"))]
        folders = [*packages, *(zone for zone in inner if _name(zone) == _MEMORY)]
        return Rapl(folders) if folders else None
    except PermissionError as error:
        raise UsageError(
            f"The processor's energy counters in {str(root)!r} can be read by root alone",
            hint=f"sudo chmod a+r {root}/intel-rapl*/energy_uj {root}/intel-rapl*/*/energy_uj",
        ) from error
    except OSError as error:
        raise UsageError(
            f"The processor's energy counters in {str(root)!r} cannot be read ({error.strerror})",
            hint="measure on a machine that has them",
        ) from error


class _Counter:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = _count(folder / "max_energy_range_uj")
        self._last = _count(self._file)
        self._sum = 0

    def microjoules(self) -> int:
        """Since the first reading."""
        now = _count(self._file)
        self._sum += now - self._last + (self._range if now < self._last else 0)
        self._last = now
        return self._sum


def _count(file: Path) -> int:
    text = file.read_text()
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"{str(file)!r} holds no count, but {text[:40]!r}") from error


def _name(folder: Path) -> str:
    return (folder / "name").read_text().strip()
