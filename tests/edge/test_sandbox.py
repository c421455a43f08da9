"""A GGUF that would end the process ends in a sentence, and a sound one is tried once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp import load as loading
from edgewise.edge.named import open_tokenizer
from edgewise.errors import ModelError
from edgewise.sandbox import Child
from pocket.convert.weights import Reader
from tests import models
from tests.mutated_gguf import mutants

EPSILON = "llama.attention.layer_norm_rms_epsilon"
Tried = Callable[[], int]


def broken(path: Path, key: str, value: float) -> Path:
    """A copy of the bundled edge model with another value."""
    reader = Reader(bundled("edge"), "c")
    field = reader.fields[key]
    field.parts[field.data[0]][0] = value
    path.write_bytes(reader.data)
    return path


def split_in_two(source: Path, stem: Path) -> list[Path]:
    """A copy of a model in two files."""
    reader = Reader(source)
    half = (len(reader.tensors) + 1) // 2
    writer = gguf.GGUFWriter(stem.with_suffix(".gguf"), "llama", split_max_tensors=half)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, own = field.types[0], field.types[-1]
            of = own if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=of)
    for one in reader.tensors:
        writer.add_tensor(one.name, one.data, raw_shape=one.data.shape, raw_dtype=one.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(stem.parent.glob(f"{stem.name}-*.gguf"))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tried:
    """How many children were started, with a record of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    begun: list[object] = []
    start = subprocess.Popen

    def counted(*args: object, **more: object) -> object:
        begun.append(args)
        return start(*args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", counted)
    return lambda: len(begun)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return Path(shutil.copy(bundled("edge"), tmp_path / "sound.gguf"))


def load(path: Path) -> None:
    with LlamaModel(path) as model:
        session = model.session()
        session.open([0, model.tokenizer.size - 1])
        session.step()


@pytest.mark.parametrize(
    ("key", "value"), [(EPSILON, -1.0), (EPSILON, float("nan")), ("llama.block_count", 1 << 20)]
)
def test_what_ends_llama_cpp_is_a_sentence(tmp_path: Path, key: str, value: float) -> None:
    path = broken(tmp_path / "broken.gguf", key, value)
    with pytest.raises(ModelError) as caught:
        LlamaModel(path)
    said = str(caught.value)
    assert said.startswith(f"{str(path)!r} is damaged")
    assert "GGML_ASSERT" in said
    assert said.endswith("; download it again.")
    assert "\n" not in said


@pytest.mark.deep
@pytest.mark.parametrize("first", [0, 19, 46, 354])
def test_a_mutated_file_never_ends_the_process(tmp_path: Path, first: int) -> None:
    """Some of them, among them such as would; `benchmarks.faults` tries any number."""
    for number, (_, data) in enumerate(mutants(6, first=first)):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        with suppress(ModelError):
            load(path)


def test_a_file_is_tried_once_and_again_where_it_changes(tried: Tried, sound: Path) -> None:
    load(bundled("edge"))
    assert tried() == 0
    load(sound)
    load(sound)
    linked = sound.with_name("linked.gguf")
    linked.symlink_to(sound)
    load(linked)
    assert tried() == 1
    broken(sound, EPSILON, -1.0)
    # Nor is one that failed remembered.
    for times in (2, 3):
        with pytest.raises(ModelError, match="is damaged"):
            load(sound)
        assert tried() == times


def test_a_file_that_changes_while_it_is_tried_is_not_remembered(
    tried: Tried, sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Child.ask

    def replacing(child: Child, request: bytes) -> bytes:
        done = ask(child, request)
        os.utime(sound, (1, 1))
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Child, "ask", replacing)
        load(sound)
    load(sound)
    assert tried() == 2


@pytest.mark.parametrize("place", ["a file", "/proc/none"])
def test_a_cache_that_cannot_be_written_costs_another_child_and_nothing_else(
    tried: Tried, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    load(sound)
    load(sound)
    assert tried() == 2


def test_an_endless_load_ends(tried: Tried, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SECONDS", 0.01)
    monkeypatch.setattr(loading, "SECONDS_A_BYTE", 0.0)
    with pytest.raises(ModelError, match="does not end"):
        load(sound)
    monkeypatch.setattr(loading, "SECONDS", 60.0)
    load(sound)


def test_what_lies_in_the_current_folder_is_not_run(
    tried: Tried, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("numpy.py", "edgewise.py", "llama_cpp.py"):
        Path(name).write_text("raise SystemExit(7)")
    load(sound)
    assert tried() == 1


@pytest.mark.deep
@pytest.mark.parametrize("epsilon", [-1.0, 1e-5])
def test_all_parts_of_a_split_file_are_tried(tried: Tried, tmp_path: Path, epsilon: float) -> None:
    """Its parts are links, to files that are named after their hashes."""
    parts = split_in_two(broken(tmp_path / "whole.gguf", EPSILON, epsilon), tmp_path / "made")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for number, part in enumerate(parts):
        blob = Path(shutil.copy(part, tmp_path / f"{number}0f"))
        (snapshot / part.name).symlink_to(blob)
    (lone := tmp_path / "lone").mkdir()
    with pytest.raises(ModelError, match=parts[1].stem):
        LlamaModel(Path(shutil.copy(parts[0], lone)))
    if epsilon > 0:
        load(snapshot / parts[0].name)
        load(snapshot / parts[0].name)
        assert tried() == 1
        with (tmp_path / "10f").open("ab") as last:
            last.write(b"more")
        load(snapshot / parts[0].name)
        assert tried() == 2
    else:
        with pytest.raises(ModelError, match="is damaged"):
            load(snapshot / parts[0].name)


@pytest.mark.parametrize("end", ["00001-of-00000", "00002-of-00001", "٠٠٠٠١-of-٠٠٠٠١"])
def test_a_name_that_is_no_part_stands_for_its_own_file(
    tried: Tried, sound: Path, end: str
) -> None:
    path = sound.rename(sound.with_name(f"m-{end}.gguf"))
    for other in ("m-00001-of-00001.gguf", "m-00001-of-٠٠٠٠١.gguf"):
        path.with_name(other).touch()
    load(path)
    os.utime(path, (1, 1))
    load(path)
    assert tried() == 2


def test_what_the_child_refuses_is_not_loaded(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(loading, "open_weights", lambda *given, **_: opened.append(given))
    sound.write_bytes(sound.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="file bounds"):
        LlamaModel(sound)
    assert opened == []


def test_a_vocabulary_alone_passes_as_no_model(tried: Tried, tmp_path: Path) -> None:
    path = models.write_byte_level(tmp_path / "whole.gguf")
    reader = gguf.GGUFReader(path)
    written = path.read_bytes()[: reader.tensors[0].field.offset]
    path.write_bytes(written[:8] + bytes(8) + written[16:])
    assert open_tokenizer(str(path)).size == len(models.byte_level().tokens)
    with pytest.raises(ModelError, match="no whole language model"):
        load(path)
    assert tried() == 2


def test_where_no_process_can_be_started_the_file_is_loaded_untried(
    tried: Tried, sound: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    load(sound)
    assert "unchecked" in caplog.text
