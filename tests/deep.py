"""Which test runs now: `make test` starts no server of somebody else."""

from contextvars import ContextVar

import pytest

CURRENT: ContextVar[pytest.Item | None] = ContextVar("CURRENT", default=None)


def require_deep(program: str) -> None:
    """Fails unless the running test has the marker `deep`."""
    item = CURRENT.get()
    if item is not None and item.get_closest_marker("deep") is None:
        pytest.fail(f"{item.nodeid} starts {program}; give it pytest.mark.deep")
