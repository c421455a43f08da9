"""ONNX Runtime as an edge engine: what a folder may say, and what its library would get wrong."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgewise.edge.base import Floats, Needs
from edgewise.errors import ModelError, UsageError
from edgewise.options.onnx.model import OnnxModel, import_genai
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests.contracts import test_edge as contract
from tests.contracts.test_edge import PROMPT, logits_after

GRAPH = "model.onnx"
CONTEXT = 96
TOLERANCE = 0.01
"""Of the largest logit: passes of other lengths differ in rounding."""


def opened(folder: Path, **options: Any) -> OnnxModel:
    return OnnxModel(folder, **{"context": CONTEXT, "threads": 1, "gpu_layers": 0} | options)


def assert_same(left: Floats, right: Floats) -> None:
    assert left.argmax() == right.argmax()
    assert np.abs(left - right).max() <= TOLERANCE * np.abs(right).max()


@pytest.fixture
def generator() -> Any:
    """The library's class, to be replaced in part."""
    import onnxruntime_genai

    return onnxruntime_genai.Generator


@pytest.fixture
def backend(
    onnx_path: Path, generator: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[contract.Backend]:
    def load(**more: Any) -> OnnxModel:
        return OnnxModel(onnx_path, threads=1, gpu_layers=0, **more)

    with closing(contract.Backend(load)) as made:
        made.count(monkeypatch, generator, "append_tokens", len)
        yield made


class TestOnnx(contract.TestEdge):
    """The contract of edge engines."""


@pytest.fixture
def copy(onnx_path: Path, tmp_path: Path) -> Path:
    """A folder to change."""
    return Path(shutil.copytree(onnx_path, tmp_path / "copy"))


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))
    return folder


def section(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Set an entry of the config, named by its path."""

    def edit(config: dict[str, Any]) -> None:
        *path, last = name.split(".")
        for part in path:
            config = config[part]
        config[last] = value

    return edit


def test_without_hidden_states_a_router_that_reads_them_is_refused(
    bpe_path: Path, onnx_path: Path, tmp_path: Path
) -> None:
    plain = convert(read(bpe_path), "onnx", tmp_path / "plain")
    with opened(plain) as model, opened(onnx_path) as able:
        assert (model.abilities.hidden, model.hidden_size) == (False, 0)
        with pytest.raises(UsageError, match="hidden states"):
            model.session(Needs.HIDDEN)
        assert_same(logits_after(model, PROMPT), logits_after(able, PROMPT))
        assert model.fingerprint() != able.fingerprint()


def test_the_padding_id_is_an_id_as_any_other(copy: Path, onnx_path: Path) -> None:
    """The library's own reading leaves ids out that equal it."""
    change(copy, section("model.pad_token_id", 40))
    with opened(copy) as padded, opened(onnx_path) as plain:
        for ids in ([40, *PROMPT, 40, 41, 40, 40], [40, 40, 40]):
            np.testing.assert_array_equal(logits_after(padded, ids), logits_after(plain, ids))


def test_a_graph_with_the_last_ids_logits_alone(copy: Path, onnx_path: Path) -> None:
    import onnx

    path = copy / GRAPH
    model = onnx.load(path)
    (head,) = [node for node in model.graph.node if "logits" in node.output]
    axes = [("from", -1), ("to", 1 << 31), ("along", 1)]
    for name, value in axes:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    cut = onnx.helper.make_node("Slice", [head.input[0], "from", "to", "along"], ["last_row"])
    head.input[0] = "last_row"
    model.graph.node.insert(list(model.graph.node).index(head), cut)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, path)
    with opened(copy) as pruned, opened(onnx_path) as whole:
        assert not pruned.abilities.batch_logits
        sessions = [model.session(Needs.LOGITS) for model in (pruned, whole)]
        for session in sessions:
            session.open(PROMPT)
        for left, right in zip(*(session.steps([50, 51, 52]) for session in sessions), strict=True):
            assert_same(left.logits, right.logits)


@pytest.mark.parametrize("wrongly", [False, True])
def test_a_library_that_cannot_go_back(
    onnx_path: Path, generator: Any, monkeypatch: pytest.MonkeyPatch, wrongly: bool
) -> None:
    back = generator.rewind_to

    def go_back(held: object, length: int) -> None:
        if not wrongly:
            raise RuntimeError("RewindTo is currently not supported")
        back(held, length - 1)

    monkeypatch.setattr(generator, "rewind_to", go_back)
    with opened(onnx_path, slots=2) as model:
        assert model.abilities.rewinds == "no"
        session = model.session(Needs.LOGITS)
        session.open(PROMPT)
        session.steps([60, 61])
        session.rewind(len(PROMPT) + 1)
        assert_same(session.step().logits, logits_after(model, [*PROMPT, 60]))


OPTIONS = "model.decoder.session_options"


def provided(**options: dict[str, str]) -> Callable[[dict[str, Any]], object]:
    return section(f"{OPTIONS}.provider_options", [options])


UNSAFE = {
    "a library": section(f"{OPTIONS}.custom_ops_library", "model.so"),
    "a library by a provider": provided(qnn={"backend_path": "/tmp/other.so"}),
    "another folder": section("model.decoder.filename", "../model.onnx"),
    "a file that it writes": section(f"{OPTIONS}.enable_profiling", "profile"),
    "a library of any name": provided(qnn={"backend_path": "weights.bin"}),
    "a plugin": provided(tensorrt={"trt_extra_plugin_lib_paths": "weights"}),
    "a file of an option": provided(any={"new_option": "weights.bin"}),
    "a folder of an option": section(f"{OPTIONS}.external_initializers_folder_path", "of"),
}
USELESS = {
    "an encoder": (section("model.encoder", {"filename": "e.onnx"}), "no decoder-only"),
    "no sizes": (section("model.vocab_size", "many"), "no description of a language model"),
    "nothing": (section("model.vocab_size", 0), "vocab_size"),
    "more ids than logits": (section("model.vocab_size", 9999), "9999"),
    "fewer ids than the tokenizer": (section("model.vocab_size", 10), "has 267 ids and its model"),
    "a lost file": (section("model.decoder.filename", "none.onnx"), "cannot load"),
    "a kind of its own": (section("model.type", "unheard-of"), "unheard-of"),
}


@pytest.mark.parametrize("edit", UNSAFE.values(), ids=UNSAFE.keys())
def test_a_config_runs_no_code_and_leads_nowhere(copy: Path, edit: Any) -> None:
    with pytest.raises(ModelError, match=r"loads|writes|leads"):
        opened(change(copy, edit))


@pytest.mark.parametrize(
    "first", [{"custom_ops_library": "weights.bin"}, {"enable_profiling": "profile"}], ids=str
)
@pytest.mark.parametrize("twice", ["session_options", "decoder", "model"])
def test_a_key_twice_is_refused(copy: Path, first: dict[str, str], twice: str) -> None:
    """One parser keeps the last, the library reads both."""
    path = copy / "genai_config.json"
    hidden = {"session_options": first, "decoder": {"session_options": first}}
    hidden["model"] = {"decoder": hidden["decoder"]}
    before = f'"{twice}": {json.dumps(hidden[twice])}, '
    path.write_text(path.read_text().replace(f'"{twice}":', f'{before}"{twice}":'))
    with pytest.raises(ModelError, match=twice):
        opened(copy)


def test_signs_that_parsers_read_differently_are_refused(copy: Path) -> None:
    outputs = "model.decoder.outputs.hidden_states"
    for name in ("hidden\nstates", "hidden\\states", 'hidden"states', "hidden\0states"):
        with pytest.raises(ModelError, match="genai_config"):
            opened(change(copy, section(outputs, name)))


def test_the_library_reads_what_was_checked(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in the folder by then."""
    import onnxruntime_genai

    config, given = onnxruntime_genai.Config, list[Path]()
    copy.joinpath("manifest.json").write_text("{}")

    def late(folder: str) -> Any:
        given.append(Path(folder))
        assert not list(Path(folder).glob("manifest*"))
        change(copy, section(f"{OPTIONS}.enable_profiling", str(copy / "profile")))
        return config(folder)

    monkeypatch.setattr(onnxruntime_genai, "Config", late)
    with opened(copy) as model:
        logits_after(model, PROMPT)
    assert not list(copy.glob("profile*"))
    assert [folder.exists() for folder in given] == [False]


def test_weights_beside_the_graph_are_found_and_links_lead_nowhere(
    copy: Path, onnx_path: Path, tmp_path: Path
) -> None:
    """As a hub's cache has them: both are links to files that lie together elsewhere."""
    import onnx

    data, blobs = copy / "model.onnx.data", tmp_path / "blobs"
    model = onnx.load(copy / GRAPH)
    onnx.save(
        model, copy / GRAPH, save_as_external_data=True, location=data.name, size_threshold=64
    )
    blobs.mkdir()
    for path in (copy / GRAPH, data):
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    with opened(copy) as split, opened(onnx_path) as whole:
        assert_same(logits_after(split, PROMPT), logits_after(whole, PROMPT))
    data.unlink()
    (blobs / data.name).rename(tmp_path / data.name)
    data.symlink_to(tmp_path / data.name)
    with pytest.raises(ModelError):
        opened(copy)


def test_qualcomms_own_libraries_may_be_named(copy: Path) -> None:
    with opened(change(copy, provided(qnn={"backend_path": "QnnHtp.dll"}))) as model:
        assert model.session().open(PROMPT) == 0


@pytest.mark.parametrize(("edit", "told"), USELESS.values(), ids=USELESS.keys())
def test_a_folder_of_no_use_ends_in_a_sentence(copy: Path, edit: Any, told: str) -> None:
    with pytest.raises(ModelError, match=told) as caught:
        opened(change(copy, edit))
    assert "\n" not in str(caught.value)


def test_whatever_is_damaged_the_process_goes_on(copy: Path) -> None:
    rng = np.random.default_rng(5)
    files = {name: (copy / name).read_bytes() for name in (GRAPH, "genai_config.json")}
    told: list[str] = []
    for turn in range(30):
        name = GRAPH if turn % 3 else "genai_config.json"
        data = bytearray(files[name])
        for at in rng.integers(0, len(data), 1 + turn % 4):
            data[int(at)] = int(rng.integers(256))
        if turn % 5 == 4:
            del data[int(rng.integers(len(data))) :]
        (copy / name).write_bytes(data)
        try:
            with opened(copy) as model:
                logits_after(model, PROMPT)
        except UsageError as error:
            told.append(str(error))
        (copy / name).write_bytes(files[name])
    assert 5 < len(told) < 30
    assert not any("\n" in sentence for sentence in told)


def test_options_that_cannot_be_honoured(onnx_path: Path) -> None:
    with pytest.raises(UsageError, match="whole model on one device") as caught:
        opened(onnx_path, gpu_layers=7)
    assert caught.value.setting == "gpu_layers"
    with pytest.raises(UsageError, match="256") as caught:
        opened(onnx_path, context=300)
    assert caught.value.setting == "ctx"


def test_telemetry_is_off_before_the_library_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    import_genai()
    assert "onnxruntime" in caplog.text
    caplog.clear()
    import_genai()
    assert not caplog.text
