"""Without MLX these are skipped."""

import pytest

from tests.cli.conftest import edgewise

pytest.importorskip("mlx_lm", exc_type=ImportError)

__all__ = ["edgewise"]
