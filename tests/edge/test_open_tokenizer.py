"""A tokenizer by itself: where it lies, and what is fetched of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import AddressError, ModelError
from tests.hub import Hub, Repository, serving
from tests.hub_files import vocabulary_of, write_tokenizer

_SCRIPT = """
import json, sys
from edgewise.edge.named import open_tokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import EdgewiseError
for address in json.loads(sys.argv[1]):
    try:
        print(fingerprint(open_tokenizer(address)))
    except EdgewiseError as error:
        print(f"! {error}")
"""


def test_one_vocabulary_in_every_form(tmp_path: Path, bpe_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "hub", vocabulary_of(bpe_path))
    with LlamaModel(bpe_path, threads=1) as model:
        expected = fingerprint(model.tokenizer)
    for address in (bpe_path, folder, folder / "tokenizer.json"):
        assert fingerprint(open_tokenizer(str(address))) == expected
    pair = {fingerprint(open_tokenizer(name)) for name in ("bundled", str(bundled("edge")))}
    assert len(pair) == 1
    assert expected not in pair


def test_it_outlives_whoever_opened_it(bpe_path: Path) -> None:
    many = [open_tokenizer(str(bpe_path)) for _ in range(3)]
    del many[:2]
    assert many[0].encode("the")


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("none.gguf", AddressError, "There is no file"),
        (".", ModelError, "There is no tokenizer.json"),
        ("cut.gguf", ModelError, "cut.gguf"),
    ],
)
def test_what_holds_none(
    tmp_path: Path,
    bpe_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    error: type[Exception],
    words: str,
) -> None:
    (tmp_path / "cut.gguf").write_bytes(bpe_path.read_bytes()[:2000])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        open_tokenizer(address)


def test_of_a_repository_the_tokenizer_alone_is_fetched(tmp_path: Path, bpe_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "hub", vocabulary_of(bpe_path))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    repositories = {
        "own/model": Repository({**files, "model.safetensors": b"weights", "x.bin": b"pickle"}),
        "own/inside": Repository({f"deep/{name}": data for name, data in files.items()}),
        "own/gguf": Repository({"small-Q8_0.gguf": bpe_path.read_bytes()}),
        "own/none": Repository({"model.safetensors": b"weights"}),
    }
    addresses = ["own/model", "hf://own/inside/deep", "own/gguf", "own/gguf:Q8_0", "own/none"]
    with serving(Hub(repositories)) as hub:
        kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("HF_", "HTTP"))}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _SCRIPT, json.dumps(addresses)],
            capture_output=True,
            text=True,
            timeout=200,
            env={**kept, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")},
        )
        assert not hub.asked("GET", "safetensors")
        assert not hub.asked("GET", "x.bin")
    assert done.returncode == 0, done.stderr
    *same, none = done.stdout.splitlines()
    assert set(same) == {fingerprint(open_tokenizer(str(bpe_path)))}
    assert "'own/none'" in none
