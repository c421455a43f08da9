"""Convert a bundled model, or any plain Llama or Qwen2 GGUF with a byte-level vocabulary.

    python -m pocket.convert --out pocket/work/converted
    python -m pocket.convert other.gguf --to onnx --out folder

writes a folder for each form: `onnx` (logits), `onnx-hidden` (logits and hidden states),
`safetensors` (for transformers) and `mlx`. All hold the same float32 weights, dequantised.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from edgewise.addresses import bundled
from pocket.convert.weights import Source, read

FORMS = ("onnx", "onnx-hidden", "safetensors", "mlx")


def convert(source: Source, form: str, folder: Path) -> Path:
    """Write `source` in one of `FORMS`; returns the folder."""
    from pocket.convert import folders

    if form.startswith("onnx"):
        from pocket.convert import graph

        graph.write(folder, source, hidden=form == "onnx-hidden")
    elif form == "mlx":
        folders.write_mlx(folder, source)
    else:
        folders.write_safetensors(folder, source)
    folders.write_tokenizer(folder, source.vocabulary)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=bundled("edge"))
    parser.add_argument("--to", choices=FORMS, action="append", help="default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the folders")
    asked = parser.parse_args()
    source = read(asked.model)
    for form in asked.to or FORMS:
        print(convert(source, form, asked.out / form))


if __name__ == "__main__":
    main()
