"""A cloud of another vocabulary whose tokenizer nobody named: the engine says where it lies."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.bridge.adapter import Bridge
from edgewise.cloud.connect import linked, open_engine, tokenizer_address
from edgewise.edge.base import Tokenizer
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.errors import VocabularyMismatch
from edgewise.pair import Pair
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from tests.cloud.dialects import (
    DialectServer,
    Reply,
    Route,
    said,
    serving,
    sglang_routes,
    vllm_routes,
)
from tests.hub import Hub, Repository
from tests.hub import serving as serving_hub
from tests.hub_files import vocabulary_of, write_tokenizer
from tests.pocket_models import OTHER

pytest.importorskip("tokenizers")

HERE, ELSEWHERE = "http://127.0.0.1:8000", "https://host.example"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled cloud's tokenizer as a hub has it."""
    return write_tokenizer(tmp_path_factory.mktemp("cloud"), vocabulary_of(bundled("cloud")))


@pytest.fixture(scope="module")
def own(folder: Path) -> Tokenizer:
    return HubTokenizer(folder)


def routes(own: Tokenizer, model: dict[str, Any], owner: str = "vllm") -> dict[Route, Reply]:
    """An engine that reads text as `own` does, and says that its model is `model`."""
    listed = said({"data": [{"id": "large", "owned_by": owner, **model}]})
    return {
        **(sglang_routes() if owner == "sglang" else vllm_routes()),
        ("GET", "/v1/models"): listed,
        ("POST", "/tokenize"): lambda body: (
            200,
            {"tokens": own.encode(body.get("prompt") or body["content"])},
        ),
    }


@pytest.mark.parametrize(
    ("said_of_it", "url", "address"),
    [
        (["owner/model"], ELSEWHERE, "owner/model"),
        (["", "large", "owner/model-1.5_B"], ELSEWHERE, "owner/model-1.5_B"),
        (["../model", "a/../b", "a..b/c", "owner/..", "/owner", "owner/"], HERE, None),
        (["https://evil.example/model", "hf://owner/model", "a/b@main", "a/b:Q4"], HERE, None),
        (["accounts/fireworks/models/m", "a/b/c", "a b/c", "a/b\n", "á/b"], HERE, None),
        (
            ["x" * 200 + "/m", ".hidden/m", "-a/b", "//server/share", "\\\\server\\share"],
            HERE,
            None,
        ),
        (["/no/such/place", "/etc", "/etc/passwd", "\0", "/" + "x" * 5000], HERE, None),
    ],
)
def test_what_can_be_used_of_what_an_engine_says(
    said_of_it: list[str], url: str, address: str | None
) -> None:
    assert tokenizer_address(said_of_it, url) == address


def test_a_path_counts_only_where_the_engine_is_on_this_device(folder: Path) -> None:
    paths = [str(folder), str(bundled("cloud"))]
    for path in paths:
        assert tokenizer_address([path], HERE) == path
        assert tokenizer_address([path], ELSEWHERE) is None
        assert tokenizer_address([path], "http://192.168.0.2:8000") is None
    assert tokenizer_address([f"{folder}/../{folder.name}"], HERE) is None


def test_a_pair_finds_it(folder: Path, own: Tokenizer) -> None:
    edge = ScriptedEdge(replying("blue", prompt="sky: "))
    with (
        serving(routes(own, {"root": str(folder)})) as server,
        Pair(edge, cloud=server.url, router="constant:0") as pair,
    ):
        assert isinstance(pair.cloud, Bridge)
        assert pair.cloud.own.size == own.size


@pytest.mark.parametrize("owner", ["sglang", "llamacpp"])
def test_other_engines_say_it_otherwise(owner: str, own: Tokenizer, folder: Path) -> None:
    found = routes(own, {}, owner)
    found["GET", "/get_model_info"] = said({"model_path": "/x", "tokenizer_path": str(folder)})
    found["GET", "/props"] = said({"total_slots": 1, "model_path": str(bundled("cloud"))})
    found["POST", "/completion"] = said({"tokens": [97]})
    with serving(found) as server, closing(open_engine(server.url)) as cloud:
        link = linked(cloud, ByteTokenizer())
        proof = link.proof
        assert isinstance(link, Bridge)
        assert "its tokenizer is that of '/" in proof
        assert proof.endswith("which the engine named")


def test_what_an_engine_names_must_give_its_ids(own: Tokenizer) -> None:
    """A file that is there and says other things, as a liar or a careless operator may name."""
    lie = {"root": str(OTHER)}
    with serving(routes(own, lie)) as server, closing(open_engine(server.url)) as cloud:
        with pytest.raises(VocabularyMismatch, match="does not help: it splits text into") as told:
            linked(cloud, ByteTokenizer())
        assert str(told.value).startswith(f"The cloud model at '{server.url}' splits ")
        assert told.value.setting == "cloud_tokenizer"
        assert (told.value.hint or "").endswith("or name its own tokenizer")


@pytest.mark.parametrize("model", [{}, {"root": "large"}, {"root": "owner/adapter", "parent": "x"}])
def test_where_nothing_is_named_it_is_the_sentence_as_before(
    own: Tokenizer, model: dict[str, Any]
) -> None:
    with serving(routes(own, model)) as server, closing(open_engine(server.url)) as cloud:
        with pytest.raises(VocabularyMismatch) as told:
            linked(cloud, ByteTokenizer())
        assert "does not help" not in str(told.value)


SCRIPT = """
import json, sys
from contextlib import closing
from edgewise.cloud.connect import open_engine
from edgewise.cloud.connect import linked
from edgewise.errors import EdgewiseError
from edgewise.testing.scripted_edge import ByteTokenizer

for url in json.loads(sys.argv[1]):
    with closing(open_engine(url, engine="vllm")) as cloud:
        try:
            print(type(linked(cloud, ByteTokenizer())).__name__)
        except EdgewiseError as error:
            print("!", error)
"""


def found(home: Path, hub: Hub, servers: list[DialectServer], **more: str) -> list[str]:
    """What a fresh process makes of engines, one line each."""
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("HF_", "HTTP"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([one.url for one in servers])],
        env={**kept, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    weights = {"model.safetensors": b"weights", "modeling_own.py": b"raise SystemExit(1)"}
    repositories = {
        "own/large": Repository({**files, **weights, "large.gguf": b"GGUF"}),
        "own/weights": Repository({"large-Q4_K_M.gguf": b"GGUF"}),
        "own/closed": Repository(files, private=True),
    }
    with serving_hub(Hub(repositories)) as served:
        yield served


@pytest.mark.deep
def test_of_a_repository_the_tokenizer_alone_is_fetched(
    hub: Hub, own: Tokenizer, tmp_path: Path
) -> None:
    named = ["own/large", "own/weights", "own/closed", "own/none"]
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(routes(own, {"root": name}))) for name in named]
        first, weights, closed, none = found(tmp_path, hub, servers)
        assert first == "Bridge"
        assert "names 'own/weights', which does not help: 'own/weights' has no" in weights
        assert "which does not help: The hub refuses 'own/closed'" in closed
        assert "which does not help: The hub" in none
        assert all("name its own tokenizer" in line for line in (weights, closed, none))
        fetched = {one.path.rpartition("/")[2] for one in hub.requests if "/resolve/" in one.path}
        assert fetched
        assert not [name for name in fetched if not name.endswith(".json")]
        # What was fetched once is there without a network; nobody is asked then.
        hub.requests.clear()
        again = found(tmp_path, hub, servers[:2], HF_HUB_OFFLINE="1")
        assert again[0] == "Bridge"
        assert "'own/weights'" in again[1]
        assert hub.requests == []


def test_what_is_too_large_is_not_fetched(hub: Hub, own: Tokenizer, tmp_path: Path) -> None:
    hub.lies = {"X-Linked-Size": str(1 << 30)}
    with serving(routes(own, {"root": "own/large"})) as server:
        (told,) = found(tmp_path, hub, [server])
    assert "134217728 bytes" in told
    assert not hub.asked("GET", "/resolve/")
