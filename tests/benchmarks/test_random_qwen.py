"""Random models of Qwen2.5's shape: their text is worth their ids."""

from pathlib import Path

import numpy as np

from benchmarks.random_qwen import Shape, build
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import bytes_of

SHAPE = Shape(hidden=64, layers=2, heads=2, kv_heads=1, ffn=128, vocabulary=12_000, eos=11_990)


def test_words_of_any_length_are_the_ids_of_their_text(tmp_path: Path) -> None:
    path = build(tmp_path / "model.gguf", shape=SHAPE)
    with LlamaModel(path, context=32, threads=1) as model:
        ids = [int(i) for i in np.random.default_rng(0).integers(256, SHAPE.eos, 200)]
        text = bytes_of(model.tokenizer, ids).decode()
        assert model.tokenizer.encode(text) == ids
        assert max(map(len, text.split())) == 4
