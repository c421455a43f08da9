"""A router of another build of its model is used with a warning, one of another model never."""

import logging
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import RouterMismatch
from edgewise.opening import open_router
from edgewise.options.onnx.model import OnnxModel
from edgewise.routers.card import CONFIG, RouterCard, behaviour_of, distance
from edgewise.settings import Settings
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests import models
from tests.onnx_models import require_onnx


def halved(source: Path, path: Path) -> Path:
    """The same weights as f16."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        data = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        writer.add_tensor(tensor.name, data.astype(np.float16) if data.ndim == 2 else data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def card_of(model: LlamaModel, folder: Path, **more: object) -> Path:
    card = RouterCard(
        kind="entropy",
        edge_fingerprint=model.fingerprint(),
        tokenizer_fingerprint=fingerprint(model.tokenizer),
        hidden_size=model.hidden_size,
        build=model.build,
        behaviour=behaviour_of(model),
        thresholds={"0.05": 0.5},
    )
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(msgspec.json.encode(msgspec.structs.replace(card, **more)))
    return folder


def opened(model: EdgeModel, folder: Path) -> RouterCard:
    _, card = open_router(Settings(router=str(folder)), model)
    assert card is not None
    return card


def test_the_same_file(bpe_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LlamaModel(bpe_path, threads=1) as model:
        assert model.build.startswith("llama.cpp, ")
        card = opened(model, card_of(model, tmp_path / "router"))
        assert card.build_warning(model) is None
    assert not caplog.records


def test_another_build(bpe_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LlamaModel(bpe_path, threads=1) as model:
        folder = card_of(model, tmp_path / "router", build="onnx, int4")
        whole = behaviour_of(model)
    with LlamaModel(halved(bpe_path, tmp_path / "half.gguf"), threads=1) as half:
        assert 0 < distance(whole, behaviour_of(half)) < 0.1
        with caplog.at_level(logging.WARNING):
            card = opened(half, folder)
        assert card.is_of_another_build(half)
    (record,) = caplog.records
    assert "onnx, int4" in record.getMessage()


def test_a_build_without_hidden_states(
    bpe_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_onnx()
    plain = convert(read(bpe_path), "onnx", tmp_path / "onnx")
    with LlamaModel(bpe_path, threads=1) as model:
        reads_none = card_of(model, tmp_path / "entropy")
        reads = card_of(model, tmp_path / "mlp", kind="mlp", inputs=("hidden",))
    with OnnxModel(plain, threads=1, gpu_layers=0) as model:
        assert opened(model, reads_none).is_of_another_build(model)
        assert "another build" in caplog.text
        with pytest.raises(RouterMismatch, match="reads hidden states") as caught:
            opened(model, reads)
        assert caught.value.setting == "router"


@pytest.mark.parametrize("trained", ["anew", "on the same, but the card says no behaviour"])
def test_another_training(bpe_path: Path, tmp_path: Path, trained: str) -> None:
    file, more = tmp_path / "other.gguf", {} if trained == "anew" else {"behaviour": ()}
    other = halved(bpe_path, file) if more else models.write_byte_level(file, seed=9)
    with LlamaModel(bpe_path, threads=1) as model:
        folder = card_of(model, tmp_path / "router", **more)
    with LlamaModel(other, threads=1) as model, pytest.raises(RouterMismatch, match="another file"):
        opened(model, folder)
