"""A GGUF file's copy with float32 weights: what llama.cpp makes of the same numbers unrounded."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from pocket.convert.weights import Reader

Floats = NDArray[np.float32]


def write_floats(path: Path, source: Path, more: Mapping[str, Floats] | None = None) -> Path:
    """Write `source` to `path`, dequantised, and `more` weights behind it."""
    reader = Reader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[0] if inner else None)
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(weight, np.float32))
    for name, weight in (more or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
