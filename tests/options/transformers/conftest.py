"""Without torch and transformers these are skipped."""

from tests.installed import require

require("torch", "transformers")
