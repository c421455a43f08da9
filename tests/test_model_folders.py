"""What lies at an address chooses the edge engine, and only what it reads is fetched."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from edgewise.addresses import resolve_folder
from edgewise.edge.named import engine_at, files_read
from edgewise.errors import AddressError
from edgewise.opening import edge_engine
from edgewise.settings import Settings
from tests.hub import Hub, Repository, in_a_process, serving

CONFIG = b'{"model_type": "llama"}'
MLX = b'{"model_type": "llama", "quantization": {"group_size": 64, "bits": 4}}'
INFINITE = b'{"time_step_limit": [0.0, Infinity], "quantization": {"bits": 4}}'
WEIGHTS = {"model.safetensors": b"weights", "tokenizer.json": b"{}"}
BY_MLX = save({"weight": np.zeros(4, np.float32)}, {"format": "mlx"})
PLAIN = {"config.json": CONFIG, **WEIGHTS}
REPOSITORIES = {
    "own/plain": Repository(
        PLAIN
        | {
            "README.md": b"# A model",
            "modeling.py": b"raise SystemExit",
            "pytorch_model.bin": b"pickle",
            "consolidated.safetensors": b"twice",
            "original/params.json": b"{}",
        }
    ),
    "own/mlx": Repository({"config.json": MLX, **WEIGHTS}),
    "own/mlx-full": Repository(PLAIN | {"model.safetensors": BY_MLX}, library="mlx"),
    "own/onnx": Repository(
        {
            "README.md": b"# ONNX",
            "cpu/genai_config.json": b"{}",
            "cpu/model.onnx": b"graph",
            "cpu/model.onnx.data": b"weights",
            "cpu/tokenizer.json": b"{}",
            "gpu/genai_config.json": b"{}",
        }
    ),
    "own/both": Repository({**PLAIN, "both-Q8_0.gguf": b"GGUF"}),
    "own/pickles": Repository({"config.json": CONFIG, "pytorch_model.bin": b"pickle"}),
    "own/evil": Repository({**PLAIN, "../../evil.json": b"{}"}),
}


def fetched(address: str) -> list[object]:
    """The engine for an address, and of a folder its name and files."""
    engine = engine_at(address)
    if engine == "llamacpp":
        return [engine]
    folder, name = resolve_folder(address, files_read(engine))
    return [engine, name, sorted(path.name for path in folder.iterdir())]


NAMES = ["config.json", "model.safetensors", "tokenizer.json"]
ONNX_NAMES = ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json"]
FOUND: dict[str, list[object] | str] = {
    "own/plain": ["transformers", "plain", NAMES],
    "own/mlx": ["mlx", "mlx", NAMES],
    "own/mlx-full": ["mlx", "mlx-full", NAMES],
    "hf://own/onnx/cpu": ["onnx", "cpu", ONNX_NAMES],
    "own/onnx": "! 'own/onnx' holds nothing that an edge engine reads (mlx, onnx, transformers); "
    "name a GGUF file, a model's folder or a hub repository of one.",
    "hf://own/onnx/npu": "! 'own/onnx' has no folder 'npu'; check the spelling.",
    "own/both": ["llamacpp"],
    "own/pickles": "! 'own/pickles' holds weights in pickles alone, which are never read; name a "
    "repository with safetensors, or a GGUF.",
    "own/evil": ["transformers", "evil", NAMES],
}


@pytest.mark.deep
def test_of_repositories(tmp_path: Path) -> None:
    def told(*addresses: str) -> dict[str, object]:
        call, here = f"{fetched.__name__}(address)", "tests.test_model_folders"
        found = in_a_process(tmp_path, hub.endpoint, call, *addresses, module=here)
        return dict(zip(addresses, found, strict=True))

    with serving(Hub(REPOSITORIES)) as hub:
        assert told(*FOUND) == FOUND
        assert not hub.asked("GET", "modeling.py")
        assert not hub.asked("GET", "pytorch_model.bin")
        assert len(hub.asked("GET", "/api/models/own/both")) == 1
        hub.status = 503
        kept = ("own/plain", "own/mlx-full")
        assert told(*kept) == {name: FOUND[name] for name in kept}


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


FOLDERS: dict[str, tuple[dict[str, bytes], str]] = {
    "transformers": (PLAIN, "transformers"),
    "MLX": ({"config.json": MLX, **WEIGHTS}, "mlx"),
    "MLX with a number that JSON has not": ({**PLAIN, "config.json": INFINITE}, "mlx"),
    "MLX in full": ({**PLAIN, "model.safetensors": BY_MLX}, "mlx"),
    "ONNX": ({"genai_config.json": b"{}", "model.onnx": b""}, "onnx"),
    "ONNX beside safetensors": ({**PLAIN, "genai_config.json": b"{}"}, "onnx"),
    "a config that is none": ({**PLAIN, "config.json": b"\xff["}, "transformers"),
}


@pytest.mark.parametrize(("files", "engine"), FOLDERS.values(), ids=FOLDERS.keys())
def test_of_folders(tmp_path: Path, files: dict[str, bytes], engine: str) -> None:
    folder = folder_of(tmp_path, files)
    assert engine_at(str(folder)) == engine
    assert resolve_folder(str(folder), files_read(engine)) == (folder, folder.name)


WRONG: dict[str, tuple[dict[str, bytes], str]] = {
    "GGUFs": ({"b.gguf": b"", "a.gguf": b""}, r"is a folder; name a file in it, such as a\.gguf"),
    "pickles": ({"config.json": CONFIG, "model.pt": b""}, "in pickles alone, which are never read"),
    "nothing": ({}, "holds nothing that an edge engine reads"),
    "a router": ({"config.json": b"{}"}, "holds nothing"),
}


@pytest.mark.parametrize(("files", "said"), WRONG.values(), ids=WRONG.keys())
def test_folders_of_another_kind(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(AddressError, match=said) as caught:
        engine_at(str(folder_of(tmp_path, files)))
    assert caught.value.setting == "edge"
    with pytest.raises(AddressError, match="no folder") as caught:
        resolve_folder(str(tmp_path / "nowhere"), ())
    assert caught.value.setting == "edge"


def test_the_rest_is_llama_cpp_s(bpe_path: Path) -> None:
    for address in ("bundled", "./none.gguf", "own/repo:Q4_0", "hf://o/r/a.gguf", str(bpe_path)):
        assert engine_at(address) == "llamacpp", address


def test_an_engine_that_is_named_is_not_looked_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, FOLDERS["MLX"][0])
    assert edge_engine(Settings(edge=str(folder), edge_engine="transformers")) == "transformers"
