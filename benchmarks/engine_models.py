"""One model in the form of every edge engine that is installed: float32 but for the GGUF."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from edgewise.edge.named import EDGES
from pocket.convert.__main__ import convert
from pocket.convert.weights import read

FORMS = {
    "llamacpp": "gguf",
    "onnx": "onnx-hidden",
    "transformers": "safetensors",
    "mlx": "mlx",
}

_LIBRARIES = {
    "llamacpp": (),
    "onnx": ("onnxruntime_genai", "tokenizers", "onnx"),
    "transformers": ("transformers", "torch"),
    "mlx": ("mlx_lm",),
}


def installed() -> list[str]:
    """Engines that can be loaded here; `onnx` writes the models of its own."""
    return [
        engine
        for engine, names in _LIBRARIES.items()
        if engine in EDGES.names() and all(find_spec(name) for name in names)
    ]


def models_for(engines: Sequence[str], path: Path, folder: Path) -> dict[str, Path]:
    """The GGUF at `path` as each engine reads it; what is not in `folder` is converted there."""
    found = {engine: path for engine in engines if FORMS[engine] == "gguf"}
    source = None
    for engine in engines:
        if engine in found:
            continue
        place = folder / f"{path.stem}-{FORMS[engine]}"
        if not place.exists():
            source = source or read(path)
            unfinished = place.with_name(f"{place.name}.part")
            # Large weights would be appended to what an interrupted run has left.
            rmtree(unfinished, ignore_errors=True)
            convert(source, FORMS[engine], unfinished).rename(place)
        found[engine] = place
    return found
