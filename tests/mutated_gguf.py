"""Broken copies of a GGUF: values, counts, tensor infos and lengths that no model has."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from edgewise.addresses import bundled
from pocket.convert.weights import Reader

HOSTILE = (0, 1, 2, 3, 7, 127, 255, 256, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
HOSTILE_LONG = (*HOSTILE, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
HOSTILE_FLOATS = (0.0, -1.0, -1e-6, 1e-38, 1e38, float("inf"), float("-inf"), float("nan"))


def mutant(original: bytes, seed: int) -> tuple[str, bytes]:
    """What was done to the copy, and the copy."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy.gguf"
        path.write_bytes(original)
        reader = Reader(path, "c")
        kind = rng.choice((_value, _value, _value, _array, _tensor, _tensor, _count, _flip, _cut))
        told = kind(reader, rng)
        data = bytes(reader.data)
    return (told, data[: rng.randrange(len(data))]) if told == "cut" else (told, data)


def _put(part: np.ndarray, rng: random.Random) -> object:
    """Another value into one element."""
    at = rng.randrange(len(part))
    if part.dtype.kind == "f":
        part[at] = value = rng.choice(HOSTILE_FLOATS)
        return value
    bits = 8 * part.dtype.itemsize
    values = HOSTILE if bits < 64 else HOSTILE_LONG
    value = rng.choice((*values, int(part[at]) + 1, int(part[at]) - 1)) % (1 << bits)
    part[at] = np.array(value, f"u{part.dtype.itemsize}").view(part.dtype)
    return value


def _value(reader: gguf.GGUFReader, rng: random.Random) -> str:
    """A scalar of the metadata."""
    scalars = [field for field in reader.fields.values() if len(field.types) == 1]
    field = rng.choice(scalars)
    return f"{field.name} = {_put(field.parts[field.data[0]], rng)}"


def _array(reader: gguf.GGUFReader, rng: random.Random) -> str:
    """An array's type or length, or an element."""
    field = rng.choice([f for f in reader.fields.values() if len(f.types) > 1])
    which = rng.randrange(3, len(field.parts)) if rng.random() < 0.5 else rng.choice((3, 4))
    return f"{field.name}[{which}] = {_put(field.parts[which], rng)}"


def _tensor(reader: gguf.GGUFReader, rng: random.Random) -> str:
    """A tensor's name, dimensions, type or place."""
    tensor = rng.choice(reader.tensors)
    which = rng.randrange(len(tensor.field.parts))
    return f"{tensor.name}[{which}] = {_put(tensor.field.parts[which], rng)}"


def _count(reader: gguf.GGUFReader, rng: random.Random) -> str:
    """How many tensors or values there are, or the version."""
    field = reader.fields[rng.choice(("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"))]
    return f"{field.name} = {_put(field.parts[0], rng)}"


def _flip(reader: gguf.GGUFReader, rng: random.Random) -> str:
    """Bits of the header."""
    places = [rng.randrange(reader.data_offset) for _ in range(rng.choice((1, 4, 16)))]
    for place in places:
        reader.data[place] ^= 1 << rng.randrange(8)
    return f"bits at {places}"


def _cut(_: gguf.GGUFReader, __: random.Random) -> str:
    return "cut"


def mutants(count: int, *, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """So many copies of the bundled edge model, the same ones each time."""
    original = bundled("edge").read_bytes()
    for seed in range(first, first + count):
        yield mutant(original, seed)
