"""A model made as the bundled pair was: a cloud of another vocabulary."""

from pathlib import Path

OTHER = Path(__file__).parent / "assets" / "other.gguf"
