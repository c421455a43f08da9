"""A smaller model made of a real one by leaving blocks out: less knowledge, the same manner."""

import re
from collections.abc import Collection
from pathlib import Path

import gguf

from pocket.convert.weights import Reader

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


def without_blocks(source: Path, target: Path, left_out: Collection[int] = (12, 13, 14)) -> Path:
    """Write `source` to `target` without some blocks; those that stay are not touched."""
    reader = Reader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    count_key = f"{architecture}.block_count"
    count = int(reader.fields[count_key].contents())
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
        found = _BLOCK.fullmatch(tensor.name)
        if found is None or int(found[1]) in kept:
            name = f"blk.{kept.index(int(found[1]))}.{found[2]}" if found else tensor.name
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
