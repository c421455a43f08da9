"""What the tests of a gateway share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgewise.keys.keys import add_key
from tests.doubles.scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine()
    yield made
    made.close()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Where the file of keys is."""
    return tmp_path / "keys.json"


@pytest.fixture
def add(keys: Path) -> Callable[..., str]:
    """Adds a key without limits but those that are named; returns its secret."""

    def added(name: str = "laptop", **limits: float) -> str:
        free = dict.fromkeys(("asks_per_second", "ids_per_second", "sessions"), 0)
        return add_key(keys, name, **{**free, **limits})

    return added


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
