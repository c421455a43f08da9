"""What `edgewise doctor` measures."""

import json
import re
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.onnx import import_genai
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_engine import ScriptedEngine, Twisted
from edgewise.testing.scripted_text import ScriptedText
from edgewise.verdict import Sent, Verdict
from tests.cli.conftest import Edgewise
from tests.hybrid_models import HybridPaths
from tests.onnx_models import require_onnx


class Recorded(CloudModel):
    """A cloud that keeps what it is asked."""

    asked: ClassVar[list[list[int]]] = []

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self.name = url

    def open(self, prompt: Prompt) -> CloudSession:
        return RecordedSession()

    def check(self, tokenizer: Tokenizer) -> str:
        return "taken as it is"

    def close(self) -> None:
        """Nothing to let go of."""


class RecordedSession:
    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        Recorded.asked.append(list(ids))
        future: Future[Verdict] = Future()
        future.set_result(Verdict(ids=(33,) * n, logprobs=(None,) * n))
        return future

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return 0

    def close(self) -> None:
        """Nothing to forget."""


def test_a_warm_consult_has_something_to_read(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question once more would be answered from the cache, without a decode."""
    point = EntryPoint("recorded", f"{__name__}:Recorded", "edgewise.cloud")
    monkeypatch.setattr(
        "edgewise.registry.entry_points",
        lambda **wanted: [point] if wanted.get("group") == point.group else [],
    )
    monkeypatch.setattr(Recorded, "asked", [])
    done = edgewise("doctor", "--cloud", "made://up", "--cloud-engine", "recorded", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    assert checks["consult"]["status"] == "ok"
    # Behind them the prompt's cache is measured.
    first, *later = Recorded.asked[:4]
    for more, ids in enumerate(later, 1):
        assert len(ids) == len(first) + more
        assert ids[: len(first) + more - 1] == Recorded.asked[more - 1]
    assert f"at first, {len(first)} tokens to read" in checks["consult"]["detail"]
    assert f"warm, one more to read (best of {len(later)})" in checks["consult"]["detail"]


def rewinds(edgewise: Edgewise, *arguments: str) -> dict[str, str]:
    """The check of that name."""
    done = edgewise("doctor", "--cloud", "none", "--json", *arguments)
    assert done.code == 0, done.out
    (found,) = [one for one in json.loads(done.out)["checks"] if one["name"] == "rewinds"]
    return found


def test_how_the_edge_goes_back(
    edgewise: Edgewise, bpe_path: Path, hybrid_paths: HybridPaths
) -> None:
    cut = "anywhere: the KV cache is cut, and nothing read again"
    assert rewinds(edgewise, "--edge", str(bpe_path))["detail"] == cut
    window = ("--edge", str(hybrid_paths["gemma3"]))
    assert rewinds(edgewise, *window)["detail"] == cut
    told = "to marks, at most 8 a session of {} KiB each; the ids behind one are read again"
    # Bytes that llama.cpp writes of a sequence of 40 ids: 4360 and 11340.
    assert rewinds(edgewise, *window, "--no-swa-full")["detail"] == told.format(4.3)
    found = rewinds(edgewise, "--edge", str(hybrid_paths["qwen35"]))
    assert (found["status"], found["detail"]) == ("ok", told.format(11.1))


def test_an_edge_that_cannot_go_back(
    edgewise: Edgewise, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_onnx()
    folder = request.getfixturevalue("onnx_path")

    def refuse(generator: object, length: int) -> None:
        raise RuntimeError("RewindTo is currently not supported")

    monkeypatch.setattr(import_genai().Generator, "rewind_to", refuse)
    found = rewinds(edgewise, "--edge", str(folder))
    assert found["status"] == "warn"
    assert found["detail"].startswith("none: going back reads the sequence again")
    assert found["fix"] == "name a GGUF of the model (--edge)"


def test_the_smaller_cache_of_windows_is_had_or_refused(
    edgewise: Edgewise, tmp_path: Path, bpe_path: Path, hybrid_paths: HybridPaths
) -> None:
    asked = ("run", "hi", "--cloud", "none", "--max-tokens", "2", "--threads", "1")
    (tmp_path / "edgewise.toml").write_text("swa-full = false\n")
    assert edgewise(*asked, "--edge", str(hybrid_paths["gemma3"])).code == 0
    done = edgewise(*asked, "--edge", str(bpe_path))
    assert (done.code, done.err) == (
        2,
        "edgewise: There is no smaller cache of sliding windows for 'bpe': it has no such layers; "
        "keep the full one (--swa-full).\n",
    )
    assert edgewise(*asked, "--edge", str(bpe_path), "--swa-full").code == 0


@pytest.mark.parametrize(("cached", "status"), [(True, "ok"), (False, "warn")])
def test_how_an_api_that_takes_text_goes_on(edgewise: Edgewise, cached: bool, status: str) -> None:
    with closing(ScriptedText("mistral", habit="echo")) as server:
        server.cached = cached
        done = edgewise("doctor", "--cloud", server.url, "--json")
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    assert checks["vocabulary"]["detail"] == (
        "two, bridged by text between words: text, as Mistral takes it: exact, behind what it "
        "repeats, keeps blanks"
    )
    assert checks["consult"]["status"] == "ok"
    assert checks["prompt cache"]["status"] == status
    told = "of 1" if cached else "does not tell what it had"
    assert told in checks["prompt cache"]["detail"]


@pytest.mark.parametrize("cached", [True, False])
def test_what_an_engine_computes_again(edgewise: Edgewise, cached: bool) -> None:
    """Of a hybrid, say, whose cache has blocks that are longer than the prompt."""
    anew = Twisted(lambda writing: replace(writing, cached=0, computed=len(writing.prompt)))
    with (
        closing(LlamaModel(bundled("edge"), threads=1)) as edge,
        closing(ScriptedEngine(tokenizer=edge.tokenizer)) as engine,
    ):
        engine.fault = lambda _: None if cached else anew
        done = edgewise("doctor", "--cloud", engine.url, "--json")
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    found = checks["prompt cache"]
    assert found["status"] == ("ok" if cached else "warn")
    read, computed = re.findall(r"\d+", found["detail"])[:2]
    assert int(read) > 1000
    assert int(computed) == (1 if cached else int(read))
    assert ("costs a whole prompt" in found["detail"]) is not cached
