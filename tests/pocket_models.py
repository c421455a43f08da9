"""Models made as the bundled pair was: a larger edge, and a cloud of another vocabulary."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "assets"

MID = _FOLDER / "mid.gguf"
OTHER = _FOLDER / "other.gguf"
