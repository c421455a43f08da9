"""Without the extra these are skipped."""

from tests.installed import require

require("redis")
