"""A server for the tests that only ask it."""

from collections.abc import Iterator

import pytest

from tests.models import write_with_tools
from tests.server.serving import serving
from tests.tool_models import HERMES


@pytest.fixture(scope="session")
def tool_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An edge model whose template has tools, and whose weights are random."""
    path = write_with_tools(tmp_path_factory.mktemp("tools") / "tools.gguf", HERMES)
    with serving("--edge", str(path), "--cloud", "none", "--threads", "1") as found:
        yield found


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The bundled pair, two answers at a time."""
    with serving("--slots", "2", "--threads", "1", "--deadline", "30") as found:
        yield found
