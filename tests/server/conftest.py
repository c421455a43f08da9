"""A server for the tests that only ask it."""

from collections.abc import Iterator

import pytest

from tests.server.serving import serving


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The bundled pair, two answers at a time."""
    with serving("--slots", "2", "--threads", "1", "--deadline", "30") as found:
        yield found
