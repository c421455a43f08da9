"""Models that only tests of engines need."""

from pathlib import Path

import pytest

from tests import models


@pytest.fixture(scope="session")
def long_path(model_folder: Path) -> Path:
    """(a) for contexts of up to 8,192 ids."""
    return models.write_transformer(model_folder / "long.gguf", models.byte_level(), context=8192)
