"""What all tests of clouds share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _patient() -> Iterator[None]:
    """A busy machine is not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgewise.cloud.redaction.filter.SECONDS", 120.0)
        yield
