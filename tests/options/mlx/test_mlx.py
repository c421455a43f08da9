"""The MLX engine: the edge contract over tiny random models, and what it makes of folders."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgewise.edge.base import Needs
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import ModelError, UsageError
from edgewise.opening import edge_engine, open_edge
from edgewise.options.mlx.model import MlxModel
from edgewise.settings import Settings
from tests import models
from tests.cli.conftest import Edgewise
from tests.contracts import test_edge as contract
from tests.contracts.test_edge import (
    MORE,
    PROMPT,
    Backend,
    assert_close,
    assert_heads_input,
    logits_after,
)
from tests.hub_files import described
from tests.hub_models import CONFIGS, SHAPE, Folders, write_mlx_model
from tests.programs import python

CONTEXT, SIZE = 96, SHAPE["vocab_size"]
KINDS = tuple(CONFIGS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("mlx"), write_mlx_model)


def load(folders: Folders, kind: str, **more: Any) -> MlxModel:
    return MlxModel(folders(kind), **more)


@pytest.fixture(params=KINDS)
def backend(
    request: pytest.FixtureRequest, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    from mlx import nn

    with closing(Backend(lambda **more: load(folders, request.param, **more))) as made:
        made.count(monkeypatch, nn.Embedding, "__call__", lambda ids: ids.size)
        yield made


class TestMlx(contract.TestEdge):
    def test_what_it_says_of_itself(self, backend: Backend) -> None:
        model = backend.model()
        assert model.parameters is not None
        assert model.build.startswith("MLX, float32 on ")


def test_a_refused_trim_reads_again(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_lm.models.cache import KVCache

    with load(folders, "llama") as model:
        wanted = logits_after(model, [*PROMPT, 9])
        session = model.session(Needs.LOGITS)
        session.open(PROMPT + MORE)
        session.step()
        monkeypatch.setattr(KVCache, "trim", lambda self, count: 0)
        assert session.open([*PROMPT, 9]) == 0
        assert_close(session.step().logits, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_may_be_another_thread_s(folders: Folders, kind: str) -> None:
    """What MLX leaves lazy in one thread cannot be computed in another."""
    with load(folders, kind, slots=2) as model:
        assert model.abilities.rewinds == ("anywhere" if kind == "llama" else "checkpoints")
        session = model.session(Needs.LOGITS)
        session.open(PROMPT)
        failed: list[BaseException] = []

        def step(token: int) -> None:
            try:
                session.step()
                session.extend([token])
                if token == MORE[2]:
                    session.rewind(len(PROMPT) + 1)
                    session.extend(MORE[1:3])
            except BaseException as error:
                failed.append(error)

        for token in MORE:
            thread = threading.Thread(target=step, args=(token,))
            thread.start()
            thread.join()
        assert not failed
        assert_close(session.step().logits, logits_after(model, PROMPT + MORE))


@pytest.mark.parametrize("kind", CONFIGS)
def test_hidden_states_are_what_the_head_reads(folders: Folders, kind: str) -> None:
    held = load_file(folders(kind) / "model.safetensors")
    (head,) = [weight for name, weight in held.items() if name.endswith("lm_head.weight")] or [
        weight for name, weight in held.items() if name.endswith("embed_tokens.weight")
    ]
    with load(folders, kind) as model:
        assert_heads_input(model, head, atol=1e-3)


def test_quantised_weights(tmp_path: Path, folders: Folders) -> None:
    folder = write_mlx_model(tmp_path / "small", "llama", bits=8)
    with MlxModel(folder) as small, load(folders, "llama") as full:
        assert small.build.startswith("MLX, 8-bit on ")
        assert small.parameters == full.parameters
        assert small.fingerprint() != full.fingerprint()
        assert fingerprint(small.tokenizer) == fingerprint(full.tokenizer)
        near = np.corrcoef(logits_after(small, PROMPT), logits_after(full, PROMPT))[0, 1]
        assert near > 0.99


class TestByAddress:
    def test_a_folder_chooses_the_engine(self, folders: Folders) -> None:
        settings = Settings(edge=str(folders("llama")), ctx=48, gpu_layers=0)
        assert edge_engine(settings) == "mlx"
        with open_edge(settings) as edge:
            assert isinstance(edge, MlxModel)
            assert (edge.name, edge.context) == ("llama", 48)
            assert edge.build == "MLX, float32 on cpu"
            assert edge.tokenizer.chat_template == models.TEMPLATE

    def test_it_can_be_named_for_what_others_wrote(self, folders: Folders, tmp_path: Path) -> None:
        folder = shutil.copytree(folders("llama"), tmp_path / "hub")
        path = folder / "model.safetensors"
        save_file(load_file(path), path, metadata={"format": "pt"})
        assert edge_engine(Settings(edge=str(folder))) == "transformers"
        named = Settings(edge=str(folder), edge_engine="mlx")
        with open_edge(named) as edge, load(folders, "llama") as own:
            assert isinstance(edge, MlxModel)
            assert_close(logits_after(edge, PROMPT), logits_after(own, PROMPT))

    def test_options_that_it_lacks(self, folders: Folders) -> None:
        lacking: dict[str, Any] = {"gpu_layers": (3, "one device"), "threads": (2, "mlx")}
        for name, (value, told) in lacking.items():
            with pytest.raises(UsageError, match=told) as caught:
                MlxModel(folders("llama"), **{name: value})
            assert caught.value.setting == name


YARN = {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "code of its own": (
        lambda f: described(f, model_file="own.py"),
        "brings code of its own .*, which is never run; name a model of a kind",
    ),
    "a kind that nobody knows": (lambda f: described(f, model_type="mine"), "type mine not supp"),
    "a kind that leads elsewhere": (
        lambda f: described(f, model_type="../../own"),
        "does not say of which kind",
    ),
    "a module that is no model": (lambda f: described(f, model_type="base"), "mlx-lm cannot load"),
    "another quantisation": (
        lambda f: described(f, quantization_config={"quant_method": "gptq"}),
        "is quantised, and not in MLX form; name the model in MLX form, unquantised, or as a GGUF",
    ),
    "a quantisation in no words": (
        lambda f: described(f, quantization={"bits": "few"}),
        "names a quantisation that MLX has not",
    ),
    "groups of no size": (
        lambda f: described(f, quantization={"lm_head": {"group_size": 0}}),
        "names a quantisation that MLX has not",
    ),
    "more layers than weights": (lambda f: described(f, num_hidden_layers=8), "mlx-lm cannot load"),
    "a vast table": (lambda f: described(f, vocab_size=1 << 40), "mlx-lm cannot load"),
    "a vast table of its own": (
        lambda f: described(f, head_dim=1 << 33, rope_scaling=YARN),
        "mlx-lm cannot load|does not hold all weights",
    ),
    "no heads": (
        lambda f: described(f, num_attention_heads=0),
        "mlx-lm cannot load|does not decode",
    ),
    "another width": (lambda f: described(f, intermediate_size=80), "mlx-lm cannot load"),
}


@pytest.mark.parametrize(("change", "told"), BAD.values(), ids=BAD.keys())
def test_bad_folders(
    folders: Folders, tmp_path: Path, change: Callable[[Path], Path], told: str
) -> None:
    folder = shutil.copytree(folders("llama"), tmp_path / "bad")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match=told) as caught:
        MlxModel(change(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("hidden_size", [1, 16, 33])
def test_packed_weights_of_another_width(tmp_path: Path, hidden_size: int) -> None:
    """MLX would divide by the size of a group, which is none here."""
    folder = write_mlx_model(tmp_path / "packed", "llama", bits=4)
    with pytest.raises(ModelError, match="not packed"):
        MlxModel(described(folder, hidden_size=hidden_size))


def test_limits_of_the_process_stay() -> None:
    """mlx-lm sets those on open files when it is imported, or fails where they are lower."""
    script = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (1024, 1500)); "
        "from edgewise.options.mlx.model import modules; modules(); "
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    assert python("-c", script).stdout.strip() == "(1024, 1500)"


def test_commands_name_it_and_answer_beside_a_gguf_of_its_vocabulary(
    edgewise: Edgewise, tmp_path: Path, bpe_path: Path
) -> None:
    folder = write_mlx_model(tmp_path / "tiny", "llama", bits=8)
    named = ["--edge", str(folder), "--gpu-layers", "0"]
    told = edgewise.json("doctor", *named)
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["edge model"]["status"] == "ok"
    assert checks["edge model"]["detail"].startswith("tiny, MLX, 8-bit on cpu, 0.1 M")
    named += ["--edge-engine", "mlx", "--cloud", str(bpe_path), "--ctx", "160"]
    asking = ("--router", "constant:1", "--threshold", "0.5", "--max-tokens", "8")
    assert edgewise.json("run", "the cat", *named, *asking)["usage"]["cloud_tokens"] > 0
