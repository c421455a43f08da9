"""Without the extra these are skipped."""

from collections.abc import Iterator

import pytest

from tests.installed import require

require("phonenumbers")


@pytest.fixture(autouse=True, scope="module")
def _patient() -> Iterator[None]:
    """A busy machine is not what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgewise.options.redact.filter.SECONDS", 120.0)
        yield
