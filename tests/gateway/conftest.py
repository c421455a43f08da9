"""What the tests of a gateway share."""

from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from edgewise.keys.keys import add_key


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Where the file of keys is."""
    return tmp_path / "keys.json"


@pytest.fixture
def add(keys: Path) -> Callable[..., str]:
    """Adds a key without limits but those that are named; returns its secret."""

    def added(name: str = "laptop", **limits: float) -> str:
        free = dict.fromkeys(("consults_per_second", "ids_per_second", "sessions"), 0)
        return add_key(keys, name, **{**free, **limits})

    return added


Told = list[MutableMapping[str, Any]]


@pytest.fixture
def told() -> Iterator[Told]:
    """What is logged."""
    capture = LogCapture()
    structlog.configure(processors=[structlog.processors.format_exc_info, capture])
    yield capture.entries
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
