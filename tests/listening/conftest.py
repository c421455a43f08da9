"""What the tests of a listener share."""

import pytest

from edgewise.listening.connections import HttpProtocol


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr("edgewise.listening.connections.WAIT_SECONDS", 0.4)
    kept = property(lambda _: 0.4, lambda *_: None)
    monkeypatch.setattr(HttpProtocol, "timeout_keep_alive", kept, raising=False)
