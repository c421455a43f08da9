"""The edge engine transformers keeps the contract of all, on tiny random models."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from edgewise.errors import ModelError
from edgewise.opening import edge_engine, open_edge
from edgewise.options.transformers.model import TransformersModel
from edgewise.settings import Settings
from tests.contracts import test_edge as contract
from tests.contracts.test_edge import Backend, assert_heads_input
from tests.hub_files import described, instead, shortened, without
from tests.hub_models import Folders, write_hub_model

pytestmark = pytest.mark.deep

EXACT = ("llama", "gemma3")
MARKED = ("lfm2", "qwen3_5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("hub"), write_hub_model)


def load(folder: Path, **more: Any) -> TransformersModel:
    return TransformersModel(folder, threads=1, gpu_layers=0, **more)


@pytest.fixture(params=[*EXACT, *MARKED])
def backend(
    request: pytest.FixtureRequest, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    import torch

    with closing(Backend(lambda **more: load(folders(request.param), **more))) as made:
        made.count(monkeypatch, torch.nn.Embedding, "forward", lambda ids: ids.numel())
        yield made


class TestTransformers(contract.TestEdge):
    def test_what_it_says_of_itself(self, backend: Backend) -> None:
        model = backend.model()
        assert model.parameters is not None
        assert model.build == "transformers, float32 on cpu"


def test_hidden_states_are_what_the_head_reads(folders: Folders) -> None:
    head = load_file(folders("llama") / "model.safetensors")["lm_head.weight"]
    with load(folders("llama")) as model:
        assert_heads_input(model, head, atol=1e-4)


@pytest.mark.parametrize("named", ["cache", "past_key_values"])
def test_the_cache_goes_by_the_name_that_the_model_takes(
    named: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases differ in it."""
    from transformers import LlamaForCausalLM

    forward = LlamaForCausalLM.forward
    own = "cache" if "cache" in signature(forward).parameters else "past_key_values"

    def renamed(self: Any, /, **said: Any) -> Any:
        return forward(self, **{own: said.pop(named)}, **said)

    takes = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", named)]
    monkeypatch.setattr(renamed, "__signature__", Signature(takes), raising=False)
    monkeypatch.setattr(LlamaForCausalLM, "forward", renamed)
    with load(folders("llama")) as model:
        assert model.abilities.rewinds == "anywhere"


def test_a_folder_chooses_the_engine_which_is_quiet_and_as_it_was(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers.utils import logging as told

    before = told.get_verbosity(), told.is_progress_bar_enabled()
    settings = Settings(edge=str(folders("llama")), ctx=48, gpu_layers=0, threads=1)
    assert edge_engine(settings) == "transformers"
    with caplog.at_level(logging.WARNING), closing(open_edge(settings)) as edge:
        assert isinstance(edge, TransformersModel)
        assert (edge.name, edge.context) == ("llama", 48)
    assert (told.get_verbosity(), told.is_progress_bar_enabled()) == before


def pickled(folder: Path) -> Path:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


def sharded(name: str) -> Callable[[Path], Path]:
    """An index says that the weights are in the file `name`, which is there."""

    def edit(folder: Path) -> Path:
        held = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / name)
        (folder / "other.safetensors").write_bytes((folder / name).read_bytes())
        index = {"metadata": {}, "weight_map": dict.fromkeys(held, name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return edit


def twice(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(path.read_text().replace("{", '{"num_hidden_layers": 1, ', 1))
    return folder


def tensor_twice(folder: Path) -> Path:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b"{", b'{"lm_head.weight": {}, ', 1)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    return folder


def adapter(folder: Path) -> Path:
    (folder / "adapter_config.json").write_text("{}")
    return folder


REMOTE = {"auto_map": {"AutoModelForCausalLM": "modeling.Mine", "AutoConfig": "modeling.Mine"}}
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an encoder": (
        lambda f: described(f, architectures=["BertForMaskedLM"]),
        "does not write text from left",
    ),
    "an encoder and a decoder": (
        lambda f: described(f, is_encoder_decoder=True),
        "does not write text from left to right; name a causal language model",
    ),
    "quantised": (
        lambda f: described(f, quantization_config={"quant_method": "gptq"}),
        r"is quantised \(gptq\), which Edgewise does not load by transformers; name the model's",
    ),
    "MLX": (lambda f: described(f, quantization={"bits": 4}), r"is quantised \(in MLX form\)"),
    "code of its own": (
        lambda f: described(f, model_type="mine", **REMOTE),
        "without code of the model's own",
    ),
    "a kind that nobody knows": (lambda f: described(f, model_type="mine"), "cannot load"),
    "too many layers": (
        lambda f: described(f, num_hidden_layers=10**9),
        "a num_hidden_layers of 1000000000, more than 4096",
    ),
    "more layers than weights": (
        lambda f: described(f, num_hidden_layers=8, layer_types=None),
        "does not hold all weights",
    ),
    "a vast table": (
        lambda f: described(f, hidden_size=1 << 20, head_dim=1 << 20),
        "does not hold all weights",
    ),
    "another width": (lambda f: described(f, intermediate_size=80), "cannot load"),
    "pickles by an index": (sharded("model.bin"), "index"),
    "weights elsewhere": (sharded("../other.safetensors"), "index"),
    "an index elsewhere": (
        lambda f: described(f, transformers_weights="in/model.safetensors.index.json"),
        "index",
    ),
    "a tensor twice": (tensor_twice, "twice"),
    "a key twice": (twice, "'num_hidden_layers' twice"),
    "cut": (shortened, "is truncated or damaged"),
    "a pointer": (instead("model.safetensors", b"version https://git-lfs.github.com"), "git lfs"),
    "a page": (instead("tokenizer.json", b"<!doctype html>"), "a web page"),
    "no weights": (without("model.safetensors"), "There are no safetensors in"),
    "pickles": (pickled, "safetensors"),
    "no tokenizer": (without("tokenizer.json"), "There is no tokenizer.json"),
    "no config": (without("config.json"), "There is no config.json"),
    "an adapter": (adapter, "holds an adapter"),
}


@pytest.mark.parametrize(("change", "told"), BAD.values(), ids=BAD.keys())
def test_bad_folders(
    folders: Folders, tmp_path: Path, change: Callable[[Path], Path], told: str
) -> None:
    folder = shutil.copytree(folders("llama"), tmp_path / "bad")
    with pytest.raises(ModelError, match=told) as caught:
        load(change(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bad" / "__pycache__").exists()


def test_several_files_of_weights_and_no_code(folders: Folders, tmp_path: Path) -> None:
    folder = shutil.copytree(folders("llama"), tmp_path / "own")
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    described(folder, **REMOTE)
    with load(sharded("model-00001-of-00001.safetensors")(folder)) as model:
        assert model.parameters
    assert not (tmp_path / "ran").exists()
