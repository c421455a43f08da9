"""What a process has held at most."""

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_memory() -> float:
    """Peak resident memory of this process, MB (2**20 bytes).

    Linux carries `ru_maxrss` over from whoever started the process, its status does not.
    """
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].removesuffix(" kB")) / (1 << 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes.
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
