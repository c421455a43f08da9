"""Models that Ollama, LM Studio, llama.cpp and the hub's cache have on this disk."""

import hashlib
import json
import os
import re
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from huggingface_hub import constants
from hypothesis import given

from edgewise import Pair
from edgewise.addresses import Role, bundled, resolve, resolve_tokenizer
from edgewise.errors import AddressError
from edgewise.hub import known
from edgewise.hub.disk import blobs_named, disk_models, vocabulary_of
from tests import models
from tests.cli.conftest import Edgewise
from tests.hub import Hub, Repository, serving
from tests.outside_bytes import bytes_like
from tests.programs import python
from tests.smollm2_file import smollm2_or_skip

WEIGHTS = bundled("edge").read_bytes()
UNUSED = gguf.TokenType.UNUSED
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()

_RESOLVE = """
import sys
from edgewise.addresses import resolve
from edgewise.hub.known import KNOWN, KnownModel
KNOWN["tiny"] = KnownModel("own/tiny", "main", "tiny.gguf", int(sys.argv[1]), sys.argv[2])
print(resolve("tiny", "edge"))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with nothing in it, and an empty cache of the hub's."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def pulled(
    models: Path,
    name: str = "registry.ollama.ai/library/tiny/0.4m",
    *,
    digest: str = f"sha256:{SHA256}",
    kind: str = "model",
    manifests: str = "manifests",
) -> Path:
    """What `ollama pull` leaves: a manifest, and the blob that it names."""
    blob = models / "blobs" / f"sha256-{SHA256}"
    manifest = models / manifests / name
    for path in (blob, manifest):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(WEIGHTS)
    layer = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    return blob


def kept(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(WEIGHTS)
    return path


def test_the_newer_layout_is_read_as_well(home: Path) -> None:
    models = home / ".ollama" / "models"
    blob = pulled(models, "ollama.com/library/tiny/0.4m", manifests="manifests-v2")
    assert resolve("ollama:tiny:0.4m", "edge") == blob


def test_ollamas_folder_may_lie_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled(home / ".ollama" / "models", "registry.ollama.ai/library/other/latest")
    blob = pulled(home / "disk")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "disk"))
    assert resolve("ollama:tiny:0.4m", "edge") == blob
    with pytest.raises(AddressError, match=r"tiny:0\.4m"):
        resolve("ollama:other", "edge")


def test_the_pair_answers_with_ollamas_file(home: Path) -> None:
    pulled(home / ".ollama" / "models")
    with Pair("ollama:tiny:0.4m", cloud="none") as pair, Pair(cloud="none") as shipped:
        asked = "Tell me about oxygen."
        assert pair.edge.name == "ollama:tiny:0.4m"
        assert pair.ask(asked, max_tokens=8).text == shipped.ask(asked, max_tokens=8).text != ""


@pytest.mark.parametrize(
    ("digest", "kind"),
    [
        ("sha256:../../../etc/passwd", "model"),
        (f"sha256:{'0' * 64}", "model"),
        (f"md5:{SHA256}", "model"),
        (f"sha256:{SHA256}", "tensor"),
    ],
)
def test_a_manifest_that_names_no_weights_is_left_out(home: Path, digest: str, kind: str) -> None:
    pulled(home / ".ollama" / "models", digest=digest, kind=kind)
    with pytest.raises(AddressError) as caught:
        resolve("ollama:tiny:0.4m", "edge")
    assert caught.value.setting == "edge"
    assert disk_models() == []


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        (
            "registry.ollama.ai/library/tiny/0.4m",
            "tiny:0.4m TINY:0.4M library/tiny:0.4m https://ollama.com/library/tiny:0.4m",
        ),
        ("registry.ollama.ai/library/tiny/latest", "tiny tiny:latest"),
        ("registry.ollama.ai/own/tiny/latest", "own/tiny Own/Tiny:Latest ollama.com/own/tiny"),
        ("host:5000/own/tiny/1", "host:5000/own/tiny:1 HOST:5000/own/tiny:1"),
        ("hf.co/own/tiny-GGUF/Q4_K_M", "hf.co/own/tiny-GGUF:Q4_K_M hf.co/own/Tiny-gguf:q4_k_m"),
    ],
)
def test_ollamas_names_are_read_as_ollama_reads_them(home: Path, manifest: str, names: str) -> None:
    blob = pulled(home / ".ollama" / "models", manifest)
    for name in names.split():
        assert resolve(f"ollama:{name}", "edge") == resolve(f"ollama:{name}", "cloud") == blob
    (listed,) = disk_models()
    assert resolve(listed.address, "edge") == blob
    if "library/tiny/0.4m" in manifest:
        assert resolve("https://ollama.com/library/tiny:0.4m", "edge") == blob


@pytest.mark.parametrize(
    ("more", "held"),
    [
        (["adapter"], "an adapter"),
        (["model"], "2 files"),
        (["projector", "template", "system", "params"], None),
    ],
)
def test_a_manifests_other_layers(home: Path, more: list[str], held: str | None) -> None:
    """An adapter or more weights are another model than the file; a projector is of images."""
    models = home / ".ollama" / "models"
    blob = pulled(models)
    manifest = models / "manifests/registry.ollama.ai/library/tiny/0.4m"
    described = json.loads(manifest.read_text())
    for kind in more:
        media, digest = f"application/vnd.ollama.image.{kind}", f"sha256:{'0' * 64}"
        described["layers"].append({"mediaType": media, "digest": digest})
    manifest.write_text(json.dumps(described))
    if held is None:
        assert resolve("ollama:tiny:0.4m", "edge") == blob
        return
    with pytest.raises(AddressError, match=held) as caught:
        resolve("ollama:tiny:0.4m", "edge")
    assert "11434" in str(caught.value)
    # Its vocabulary is all the same, for Ollama's address as the edge.
    assert resolve_tokenizer("ollama:tiny:0.4m") == blob
    assert disk_models() == []


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b'{"layers": 3}', b"[" * 100_000])
def test_a_manifest_of_any_bytes_is_left_out(home: Path, text: bytes) -> None:
    models = home / ".ollama" / "models"
    pulled(models)
    kept(models, "manifests/registry.ollama.ai/library/odd/latest").write_bytes(text)
    assert [one.address for one in disk_models()] == ["ollama:tiny:0.4m"]


@pytest.mark.parametrize("name", ["../tiny:0.4m", "..", "a/b/c/d", "tiny:", "", "x\0y"])
def test_names_that_lead_elsewhere_are_refused(home: Path, name: str) -> None:
    pulled(home / ".ollama" / "models")
    with pytest.raises(AddressError):
        resolve(f"ollama:{name}", "edge")


@pytest.mark.parametrize(
    "name",
    [
        "own/Tiny-0.4M-GGUF/Tiny-0.4M-Q4_K_M.gguf",
        "own/Tiny-0.4M-GGUF",
        "Tiny-0.4M-GGUF",
        "tiny-0.4m",
        "tiny-0.4m-q4_k_m",
    ],
)
def test_lm_studios_models_are_found_by_the_end_of_their_names(home: Path, name: str) -> None:
    folder = home / ".lmstudio" / "models"
    kept(folder, "own/Tiny-0.4M-GGUF/mmproj-Tiny-0.4M.gguf")
    path = kept(folder, "own/Tiny-0.4M-GGUF/Tiny-0.4M-Q4_K_M.gguf")
    assert resolve(f"lmstudio:{name}", "edge") == path
    with pytest.raises(AddressError, match=r"Q4_K_M"):
        resolve("lmstudio:4m", "edge")


def test_lm_studio_says_where_its_home_is(home: Path) -> None:
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'moved'}\n")
    path = kept(home / "moved" / "models", "own/tiny/tiny.gguf")
    assert resolve("lmstudio:tiny", "edge") == path


def test_lm_studios_links_and_folder_of_downloads(home: Path) -> None:
    own, disk, moved = home / ".lmstudio" / "models", home / "disk", home / "moved"
    linked = kept(disk, "own/linked/linked-Q8_0.GGUF")
    kept(moved, "own/moved/moved.gguf")
    own.mkdir(parents=True)
    (own / "own").symlink_to(disk / "own")
    (disk / "own" / "round").symlink_to(own)
    (own / "whole").symlink_to("/proc/self/fd")
    settings = home / ".lmstudio" / "settings.json"
    settings.write_text(json.dumps({"downloadsFolder": str(moved)}))
    assert resolve("lmstudio:linked", "edge").samefile(linked)
    assert resolve("lmstudio:Moved", "edge") == moved / "own/moved/moved.gguf"
    assert len(disk_models()) == 2
    for odd in (
        b"",
        b"[]",
        b'{"downloadsFolder": 3}',
        b'{"downloadsFolder": "a\\u0000b"}',
        b"\xff",
    ):
        settings.write_bytes(odd)
        assert len(disk_models()) == 1


def test_what_is_no_file_is_not_read(home: Path) -> None:
    os.mkfifo(home / ".lmstudio-home-pointer")
    (home / ".lmstudio").mkdir()
    os.mkfifo(home / ".lmstudio" / "settings.json")
    manifest = home / ".ollama" / "models" / "manifests/registry.ollama.ai/library/odd/latest"
    manifest.parent.mkdir(parents=True)
    os.mkfifo(manifest)
    assert disk_models() == []


def test_a_part_of_very_many_costs_no_look_at_each(home: Path) -> None:
    for number in range(20):
        kept(home / ".lmstudio" / "models", f"own/{number}/a-00001-of-99999.gguf")
    looked: list[Path] = []
    with pytest.MonkeyPatch.context() as patched:
        stat = Path.stat
        patched.setattr(
            Path, "stat", lambda path, **how: (looked.append(path), stat(path, **how))[1]
        )
        assert len(disk_models()) == 20
    assert len(looked) < 200


def test_tokens_have_a_bound_together(tmp_path: Path) -> None:
    path = tmp_path / "vast.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key = b"tokenizer.ggml.tokens"
    head += struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, 100)
    with path.open("wb") as file:
        file.write(head)
        for _ in range(100):
            file.write(struct.pack("<Q", 1 << 20))
            file.seek(1 << 20, os.SEEK_CUR)
        file.truncate()
    assert vocabulary_of(path) is None


def test_all_are_listed(home: Path, edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(home / "llama"))
    kept(home / "llama", "own_tiny.gguf")
    kept(home / ".lmstudio" / "models", "own/tiny/tiny.gguf")
    pulled(home / ".ollama" / "models")
    listed = edgewise.json("models", "list")
    found = {one["address"]: one for one in listed if one["program"] != "Edgewise"}
    assert set(found) == {
        "ollama:tiny:0.4m",
        "lmstudio:own/tiny/tiny.gguf",
        str(home / "llama" / "own_tiny.gguf"),
    }
    assert {one["size"] for one in found.values()} == {len(WEIGHTS)}
    for address in found:
        assert Path(found[address]["path"]) == resolve(address, "edge")
    assert "ollama:tiny:0.4m" in edgewise("models", "list").out


def test_a_split_model_is_listed_once_with_all_its_bytes(home: Path, edgewise: Edgewise) -> None:
    folder = home / ".lmstudio" / "models" / "own" / "split"
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "a.imatrix.gguf"):
        kept(folder, name)
    (listed,) = disk_models()
    assert listed.address == "lmstudio:own/split/a-00001-of-00002.gguf"
    assert listed.size == 2 * len(WEIGHTS)
    assert "00002-of" not in edgewise("models", "list").out


def test_models_that_share_a_vocabulary_are_marked(
    home: Path, edgewise: Edgewise, bpe_path: Path, other_path: Path
) -> None:
    for path in (bpe_path, other_path):
        folder = home / ".lmstudio" / "models"
        kept(folder, f"own/{path.name}").write_bytes(path.read_bytes())
    kept(home / "hub" / "models--own--twin" / "snapshots" / "1", "twin.gguf")
    listed = edgewise.json("models", "list")
    of = {one["address"]: one["vocabulary"] for one in listed}
    assert of["bundled"] == of["bundled (cloud)"] == vocabulary_of(home / "hub/models--own--twin")
    own = [of[address] for address in of if address != "smollm2"]
    assert len(set(own)) == 3
    shown = edgewise("models", "list").out.splitlines()
    marked = [line.split()[0] for line in shown if re.search(r" 1 +/", line)]
    assert marked == ["bundled", "bundled", "own/twin"]


def test_padding_is_no_difference(tmp_path: Path) -> None:
    paths = [tmp_path / f"{generation}.gguf" for generation in ("2.5", "3")]
    plain = models.byte_level()
    padded = replace(plain, tokens=[*plain.tokens, "[PAD99]"], kinds=[*plain.kinds, UNUSED])
    for path, vocabulary in zip(paths, (plain, padded), strict=True):
        models.write_transformer(path, vocabulary)
    assert vocabulary_of(paths[0]) == vocabulary_of(paths[1]) is not None


@given(bytes_like(WEIGHTS[:4000]))
def test_a_header_of_any_bytes_has_a_vocabulary_or_none(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.gguf"
        path.write_bytes(data)
        assert len(vocabulary_of(path) or "") in (0, 64)


@pytest.mark.parametrize(
    ("address", "role", "hint"),
    [
        ("tiny:0.4m", "edge", "ollama:tiny:0.4m"),
        ("qwen3:0.6b", "edge", "ollama:qwen3:0.6b"),
        ("tiny.gguf", "edge", "lmstudio:own/tiny/tiny.gguf"),
        ("http://localhost:11434", "edge", "ollama:NAME"),
        ("gpt-oss:20b", "cloud", "ollama:gpt-oss:20b"),
        (".", "edge", "folder"),
        (".", "cloud", "folder"),
        ("api.example.com:8080", "cloud", "https://api.example.com:8080"),
        ("localhost:8080", "edge", "engine's address"),
        ("nothing", "cloud", "'nothing'"),
    ],
)
def test_a_name_without_its_program_says_what_would_work(
    home: Path, address: str, role: Role, hint: str
) -> None:
    pulled(home / ".ollama" / "models")
    kept(home / ".lmstudio" / "models", "own/tiny/tiny.gguf")
    with pytest.raises(AddressError) as caught:
        resolve(address, role)
    assert caught.value.setting == role
    assert hint in str(caught.value)


@pytest.mark.parametrize("folder", ["/" + "x" * 5000, "/dev/null"])
def test_a_folder_that_cannot_be_read_holds_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", folder)
    monkeypatch.setenv("LLAMA_CACHE", folder)
    (home / ".lmstudio-home-pointer").write_text(folder)
    assert disk_models() == []
    assert blobs_named(SHA256) == []
    (home / ".lmstudio-home-pointer").write_bytes(b"a\0b")
    assert disk_models() == []


class TestKnownModels:
    """By short names, and by the hash of their file."""

    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = known.KnownModel("own/tiny", "main", "tiny.gguf", len(WEIGHTS), SHA256)
        monkeypatch.setitem(known.KNOWN, "tiny", model)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def test_a_file_of_any_program_is_used(self, home: Path) -> None:
        path = kept(home / ".lmstudio" / "models", "a/b/any-name.gguf")
        assert resolve("tiny", "edge") == path

    def test_a_file_of_the_hubs_cache_is_used(self, home: Path) -> None:
        path = kept(home / "hub", f"models--some--copy/blobs/{SHA256}")
        assert resolve("tiny", "edge") == path

    def test_another_file_of_that_size_is_not(self, home: Path) -> None:
        kept(home / ".lmstudio" / "models", "a/b/c.gguf").write_bytes(WEIGHTS[:-1] + b"?")
        with pytest.raises(AddressError, match="own/tiny"):
            resolve("tiny", "edge")

    def test_a_file_does_not_take_that_name(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(home)
        kept(home, "tiny")
        with pytest.raises(AddressError, match=r"\./tiny"):
            resolve("tiny", "edge")
        assert resolve("./tiny", "edge") == Path("tiny")

    @pytest.mark.parametrize("last", [WEIGHTS[-1:], b"?"])
    def test_else_it_is_downloaded_and_must_be_that_file(self, home: Path, last: bytes) -> None:
        sent = WEIGHTS[:-1] + last
        with serving(Hub({"own/tiny": Repository({"tiny.gguf": sent})})) as hub:
            asked = ("-c", _RESOLVE, str(len(WEIGHTS)), SHA256)
            ran = python(*asked, code=None, HF_HOME=str(home), HF_ENDPOINT=hub.endpoint)
        if sent == WEIGHTS:
            assert Path(ran.stdout.strip()).read_bytes() == WEIGHTS, ran.stderr
        else:
            assert "AddressError" in ran.stderr
            assert "SHA-256" in ran.stderr

    def test_it_can_be_pulled(self, home: Path, edgewise: Edgewise) -> None:
        path = kept(home / ".lmstudio" / "models", "a/b/any-name.gguf")
        done = edgewise("models", "pull", "tiny")
        assert done.out.strip() == str(path), done.err

    def test_a_package_may_carry_it(self) -> None:
        assert resolve("smollm2", "edge") == smollm2_or_skip()
