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


@pytest.fixture
def ollama(home: Path) -> Path:
    return home / ".ollama" / "models"


@pytest.fixture
def studio(home: Path) -> Path:
    return home / ".lmstudio" / "models"


TINY = "registry.ollama.ai/library/tiny/0.4m"
ODD = "registry.ollama.ai/library/odd/latest"


def manifest(*layers: str) -> str:
    """Of layers like "model sha256:12"."""
    pairs = [layer.split() for layer in layers]
    told = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest}
        for kind, digest in pairs
    ]
    return json.dumps({"schemaVersion": 2, "layers": told})


def pulled(models: Path, name: str = TINY, *more: str) -> Path:
    """What `ollama pull` leaves: a manifest, with more layers, and the blob that it names."""
    kept(models, f"manifests/{name}", manifest(f"model sha256:{SHA256}", *more).encode())
    return kept(models, f"blobs/sha256-{SHA256}")


def kept(folder: Path, name: str, data: bytes = WEIGHTS) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_ollamas_folder_may_lie_elsewhere(home: Path, ollama: Path, edgewise: Edgewise) -> None:
    pulled(ollama, ODD)
    blob = pulled(home / "disk")
    edgewise.setenv(OLLAMA_MODELS=str(home / "disk"))
    assert resolve("ollama:tiny:0.4m", "edge") == blob
    with pytest.raises(AddressError, match=r"tiny:0\.4m"):
        resolve("ollama:odd", "edge")


def test_the_pair_answers_with_ollamas_file(ollama: Path) -> None:
    pulled(ollama)
    with Pair("ollama:tiny:0.4m", cloud="none") as pair, Pair(cloud="none") as shipped:
        asked = "Tell me about oxygen."
        assert pair.edge.name == "ollama:tiny:0.4m"
        assert pair.ask(asked, max_tokens=8).text == shipped.ask(asked, max_tokens=8).text != ""


@pytest.mark.parametrize(
    ("name", "names"),
    [
        (TINY, "tiny:0.4m TINY:0.4M library/tiny:0.4m https://ollama.com/library/tiny:0.4m"),
        ("../manifests-v2/ollama.com/library/tiny/0.4m", "tiny:0.4m"),
        ("registry.ollama.ai/library/tiny/latest", "tiny tiny:latest"),
        ("registry.ollama.ai/own/tiny/latest", "own/tiny Own/Tiny:Latest ollama.com/own/tiny"),
        ("host:5000/own/tiny/1", "host:5000/own/tiny:1 HOST:5000/own/tiny:1"),
        ("hf.co/own/tiny-GGUF/Q4_K_M", "hf.co/own/tiny-GGUF:Q4_K_M hf.co/own/Tiny-gguf:q4_k_m"),
    ],
)
def test_ollamas_names_are_read_as_ollama_reads_them(ollama: Path, name: str, names: str) -> None:
    blob = pulled(ollama, name)
    for one in names.split():
        assert resolve(f"ollama:{one}", "edge") == resolve(f"ollama:{one}", "cloud") == blob
        if one.startswith("https:"):
            assert resolve(one, "edge") == blob
    (listed,) = disk_models()
    assert resolve(listed.address, "edge") == blob


@pytest.mark.parametrize(
    ("more", "held"),
    [
        (["adapter"], "an adapter"),
        (["model"], "2 files"),
        (["projector", "template", "system", "params"], None),
    ],
)
def test_a_manifests_other_layers(ollama: Path, more: list[str], held: str | None) -> None:
    """An adapter or more weights are another model than the file; a projector is of images."""
    blob = pulled(ollama, TINY, *(f"{kind} sha256:{'0' * 64}" for kind in more))
    if held is None:
        assert resolve("ollama:tiny:0.4m", "edge") == blob
        return
    with pytest.raises(AddressError, match=held) as caught:
        resolve("ollama:tiny:0.4m", "edge")
    assert "11434" in str(caught.value)
    # Its vocabulary is all the same, for Ollama's address as the edge.
    assert resolve_tokenizer("ollama:tiny:0.4m") == blob
    assert disk_models() == []


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\xff", b"[]", b'{"layers": 3}', b"[" * 100_000),
        manifest("model sha256:../../../etc/passwd").encode(),
        manifest(f"model sha256:{'0' * 64}").encode(),
        manifest(f"model md5:{SHA256}").encode(),
        manifest(f"tensor sha256:{SHA256}").encode(),
    ],
    ids=lambda text: text[-20:],
)
def test_a_manifest_that_names_no_weights_is_left_out(ollama: Path, text: bytes) -> None:
    pulled(ollama)
    kept(ollama, f"manifests/{ODD}", text)
    assert [one.address for one in disk_models()] == ["ollama:tiny:0.4m"]
    with pytest.raises(AddressError) as caught:
        resolve("ollama:odd", "edge")
    assert caught.value.setting == "edge"


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
def test_lm_studios_models_are_found_by_the_end_of_their_names(studio: Path, name: str) -> None:
    kept(studio, "own/Tiny-0.4M-GGUF/mmproj-Tiny-0.4M.gguf")
    path = kept(studio, "own/Tiny-0.4M-GGUF/Tiny-0.4M-Q4_K_M.gguf")
    assert resolve(f"lmstudio:{name}", "edge") == path
    with pytest.raises(AddressError, match=r"Q4_K_M"):
        resolve("lmstudio:4m", "edge")


def test_a_model_lies_in_a_folder_of_any_name(home: Path, studio: Path) -> None:
    path = kept(studio, "own/tiny-imatrix-GGUF/tiny.gguf")
    kept(studio, "own/tiny-imatrix-GGUF/tiny.imatrix.gguf")
    assert resolve("lmstudio:own/tiny-imatrix-GGUF", "edge") == path
    cache = home / "hub" / "models--own--mmproj"
    kept(cache, "snapshots/1/tiny.gguf")
    assert vocabulary_of(cache) == vocabulary_of(bundled("edge"))


def test_lm_studios_links_folder_of_downloads_and_home(home: Path, studio: Path) -> None:
    disk, moved = home / "disk", home / "moved"
    linked = kept(disk, "own/linked/linked-Q8_0.GGUF")
    kept(moved, "own/moved/moved.gguf")
    studio.mkdir(parents=True)
    (studio / "own").symlink_to(disk / "own")
    (disk / "own" / "round").symlink_to(studio)
    (studio / "whole").symlink_to("/proc/self/fd")
    settings = studio.parent / "settings.json"
    settings.write_text(json.dumps({"downloadsFolder": str(moved)}))
    assert resolve("lmstudio:linked", "edge").samefile(linked)
    assert resolve("lmstudio:Moved", "edge") == moved / "own/moved/moved.gguf"
    assert len(disk_models()) == 2
    odd = (b"", b"[]", b'{"downloadsFolder": 3}', b'{"downloadsFolder": "a\\u0000b"}', b"\xff")
    for data in odd:
        settings.write_bytes(data)
        assert len(disk_models()) == 1
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'elsewhere'}\n")
    path = kept(home / "elsewhere" / "models", "own/tiny/tiny.gguf")
    assert resolve("lmstudio:tiny", "edge") == path


def test_what_is_no_file_is_not_read(home: Path) -> None:
    files = (".lmstudio-home-pointer", ".lmstudio/settings.json", f".ollama/models/manifests/{ODD}")
    for path in (home / name for name in files):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    assert disk_models() == []


@pytest.mark.parametrize("folder", ["/" + "x" * 5000, "/dev/null"])
def test_an_unreadable_folder_holds_nothing(home: Path, edgewise: Edgewise, folder: str) -> None:
    edgewise.setenv(OLLAMA_MODELS=folder, LLAMA_CACHE=folder)
    for pointer in (folder.encode(), b"a\0b"):
        (home / ".lmstudio-home-pointer").write_bytes(pointer)
        assert disk_models() == []
    assert blobs_named(SHA256) == []


def test_a_part_of_very_many_costs_no_looks(studio: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        kept(studio, f"own/{number}/a-00001-of-99999.gguf")
    looked: list[Path] = []
    stat = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda path, **how: (looked.append(path), stat(path, **how))[1]
    )
    assert len(disk_models()) == 20
    assert len(looked) < 200


def test_tokens_have_a_bound_together(tmp_path: Path) -> None:
    path = tmp_path / "vast.gguf"
    key = b"tokenizer.ggml.tokens"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key)
        file.write(struct.pack("<IIQ", 9, 8, 100))
        for _ in range(100):
            file.write(struct.pack("<Q", 1 << 20))
            file.seek(1 << 20, os.SEEK_CUR)
        file.truncate()
    assert vocabulary_of(path) is None


def test_all_are_listed(home: Path, ollama: Path, studio: Path, edgewise: Edgewise) -> None:
    """A split model once, with all its bytes."""
    edgewise.setenv(LLAMA_CACHE=str(home / "llama"))
    kept(home / "llama", "own_tiny.gguf")
    pulled(ollama)
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "a.imatrix.gguf"):
        kept(studio, f"own/split/{name}")
    listed = edgewise.json("models", "list")
    found = {one["address"]: one for one in listed if one["program"] != "Edgewise"}
    assert {address: one["size"] // len(WEIGHTS) for address, one in found.items()} == {
        "ollama:tiny:0.4m": 1,
        "lmstudio:own/split/a-00001-of-00002.gguf": 2,
        str(home / "llama" / "own_tiny.gguf"): 1,
    }
    for address in found:
        assert Path(found[address]["path"]) == resolve(address, "edge")
    shown = edgewise("models", "list").out
    assert "ollama:tiny:0.4m" in shown
    assert "00002-of" not in shown


def test_models_that_share_a_vocabulary_are_marked(
    home: Path, studio: Path, edgewise: Edgewise, bpe_path: Path, other_path: Path
) -> None:
    for path in (bpe_path, other_path):
        kept(studio, f"own/{path.name}", path.read_bytes())
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
    plain = models.byte_level()
    padded = replace(plain, tokens=[*plain.tokens, "[PAD99]"], kinds=[*plain.kinds, UNUSED])
    found: list[str | None] = []
    for vocabulary in (plain, padded):
        models.write_transformer(tmp_path / "made.gguf", vocabulary)
        found.append(vocabulary_of(tmp_path / "made.gguf"))
    assert found[0] == found[1] is not None


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
        # Names that lead elsewhere.
        *((f"ollama:{name}", "edge", "") for name in ("../tiny:0.4m", "..", "a/b/c/d", "tiny:")),
        *((f"ollama:{name}", "edge", "") for name in ("", "x\0y")),
    ],
)
def test_a_bad_name_is_told(
    ollama: Path, studio: Path, address: str, role: Role, hint: str
) -> None:
    pulled(ollama)
    kept(studio, "own/tiny/tiny.gguf")
    with pytest.raises(AddressError) as caught:
        resolve(address, role)
    assert caught.value.setting == role
    assert hint in str(caught.value)


class TestKnownModels:
    """By short names, and by the hash of their file."""

    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = known.KnownModel("own/tiny", "main", "tiny.gguf", len(WEIGHTS), SHA256)
        monkeypatch.setitem(known.KNOWN, "tiny", model)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    @pytest.mark.parametrize(
        "name", [".lmstudio/models/a/b/any-name.gguf", f"hub/models--some--copy/blobs/{SHA256}"]
    )
    def test_a_file_that_is_here_is_used(self, home: Path, edgewise: Edgewise, name: str) -> None:
        path = kept(home, name)
        assert resolve("tiny", "edge") == path
        done = edgewise("models", "pull", "tiny")
        assert done.out.strip() == str(path), done.err

    def test_another_file_of_that_size_or_name_is_not(
        self, home: Path, studio: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept(studio, "a/b/c.gguf", WEIGHTS[:-1] + b"?")
        with pytest.raises(AddressError, match="own/tiny"):
            resolve("tiny", "edge")
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

    def test_a_package_may_carry_it(self) -> None:
        assert resolve("smollm2", "edge") == smollm2_or_skip()
