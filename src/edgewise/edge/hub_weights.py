"""Weights of a hub model's folder: which files they are, how many numbers, and one digest."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from edgewise.errors import ModelError

_BLOCKS, _BLOCK_BYTES = 64, 65536


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, by name. Raises `ModelError` for none."""
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not found:
        raise ModelError(
            f"There are no safetensors in {str(folder)!r}",
            hint="name a folder that holds some: weights in pickles are never read",
        )
    return found


def count_weights(files: Sequence[Path]) -> int:
    """How many numbers there are in all tensors. Raises `ModelError`."""
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in files:
        try:
            with safe_open(path, framework="numpy") as tensors:
                shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"{str(path)!r} is truncated or damaged ({str(error)[:200]})",
                hint="download it again",
            ) from error
        count += sum(map(math.prod, shapes))
    return count


def digest_of(files: Sequence[Path]) -> str:
    """SHA-256 over names, lengths and 64 evenly spaced blocks of 64 KiB of each file.

    Two trainings differ in every block of weights, so a sample tells them apart.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            last = max(size - _BLOCK_BYTES, 0)
            for index in range(_BLOCKS if last else 1):
                file.seek(last * index // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
