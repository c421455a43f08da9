"""What the tests of a listener share."""

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr("edgewise.listening.connections.WAIT_SECONDS", 0.4)
