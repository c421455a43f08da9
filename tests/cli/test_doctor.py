"""What `edgewise doctor` measures."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from edgewise.addresses import bundled
from edgewise.advice import DecodedPace
from edgewise.cloud.base import CloudModel
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.loop.decoder import Decoder
from edgewise.opening import nearest_cloud, open_edge, router_identity
from edgewise.options.onnx.model import import_genai
from edgewise.routers.thresholds import keep_tuned
from edgewise.settings import Settings
from edgewise.testing import ScriptedCloud, noise
from edgewise_lab.bench.pace import EnginePace
from tests.cli.conftest import Edgewise
from tests.doubles.paced_engine import PacedEngine
from tests.doubles.scripted_engine import ScriptedEngine, Twisted
from tests.doubles.scripted_text import ScriptedText
from tests.doubles.served_edge import PROGRAMS, WRITTEN, llama_edge
from tests.hybrid_models import HybridPaths
from tests.llama_server_process import llama_server
from tests.onnx_models import require_onnx


class Recorded(ScriptedCloud):
    """A cloud that takes any vocabulary."""

    made: ClassVar[list["Recorded"]] = []

    def __init__(self, url: str, *, key: str | None, model: str | None) -> None:
        super().__init__(noise())
        self.made.append(self)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        return "taken as it is"


def report(edgewise: Edgewise, *arguments: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The checks by name, and the advice."""
    done = edgewise("doctor", "--json", *arguments, code=None)
    told = json.loads(done.out)
    assert (done.code == 0) == all(check["status"] != "fail" for check in told["checks"])
    return {check["name"]: check for check in told["checks"]}, told["advice"]


def test_a_warm_consult_has_to_read(edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question once more would be answered from the cache, without a decode."""
    point = EntryPoint("recorded", f"{__name__}:Recorded", "edgewise.cloud")
    monkeypatch.setattr(
        "edgewise.registry.entry_points",
        lambda **wanted: [point] if wanted.get("group") == point.group else [],
    )
    monkeypatch.setattr(Recorded, "made", [])
    checks, _ = report(edgewise, "--cloud", "made://up", "--cloud-engine", "recorded")
    assert checks["consult"]["status"] == "ok"
    asks = [ids for ids, _ in Recorded.made[0].asks]
    assert [len(ids) - len(asks[0]) for ids in asks] == [0, 1, 2, 3]
    assert all(ids[:-1] == before for before, ids in pairwise(asks))
    assert f"{len(asks[0])} tokens to read" in checks["consult"]["detail"]


def rewinds(edgewise: Edgewise, edge: Path) -> dict[str, str]:
    return report(edgewise, "--cloud", "none", "--edge", str(edge))[0]["rollback"]


def test_how_edges_go_back(edgewise: Edgewise, bpe_path: Path, hybrid_paths: HybridPaths) -> None:
    for path in (bpe_path, hybrid_paths["gemma3"]):
        assert rewinds(edgewise, path)["detail"].startswith("anywhere")
    found = rewinds(edgewise, hybrid_paths["qwen35"])
    assert (found["status"], found["detail"].startswith("to checkpoints")) == ("ok", True)


def test_an_edge_that_cannot_go_back(
    edgewise: Edgewise, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_onnx()
    folder = request.getfixturevalue("onnx_path")

    def refuse(generator: object, length: int) -> None:
        raise RuntimeError("RewindTo is currently not supported")

    monkeypatch.setattr(import_genai().Generator, "rewind_to", refuse)
    found = rewinds(edgewise, folder)
    assert found["status"] == "warn"
    assert "GGUF" in found["fix"]


@pytest.mark.parametrize(("cached", "status"), [(True, "ok"), (False, "warn")])
def test_how_an_api_that_takes_text_goes_on(edgewise: Edgewise, cached: bool, status: str) -> None:
    with closing(ScriptedText("mistral", habit="echo")) as server:
        server.cached = cached
        checks, _ = report(edgewise, "--cloud", server.url)
    assert "two, by words of text" in checks["vocabulary"]["detail"]
    assert "Mistral" in checks["vocabulary"]["detail"]
    asked = ("consult", "what leaves the device", "prompt cache")
    assert [checks[name]["status"] for name in asked] == ["ok", "warn", status]
    told = "of 1" if cached else "does not tell what it had"
    assert told in checks["prompt cache"]["detail"]


@pytest.fixture
def own_engine() -> Iterator[ScriptedEngine]:
    """Of the bundled pair's vocabulary."""
    with (
        LlamaModel(bundled("edge"), threads=1) as edge,
        closing(ScriptedEngine(tokenizer=edge.tokenizer)) as made,
    ):
        yield made


@pytest.mark.parametrize("cached", [True, False])
def test_what_is_computed_again(
    edgewise: Edgewise, own_engine: ScriptedEngine, cached: bool
) -> None:
    """Of a hybrid, say, whose cache has blocks that are longer than the prompt."""
    anew = Twisted(
        lambda writing: replace(writing, cached=0, computed=writing.cached + writing.computed)
    )
    own_engine.fault = lambda _: None if cached else anew
    found = report(edgewise, "--cloud", own_engine.url)[0]["prompt cache"]
    assert found["status"] == ("ok" if cached else "warn")
    read, computed = re.findall(r"\d+", found["detail"])[:2]
    assert int(read) > 1000
    assert int(computed) == (1 if cached else int(read))
    assert ("costs a whole prompt" in found["detail"]) is not cached


@pytest.mark.deep
def test_a_slow_edge_is_advised_to_stream(edgewise: Edgewise) -> None:
    """A real engine, at a pace that is known; the bundled edge is quicker than any."""
    pace = EnginePace(first=0.05, token=0.03, read=0.0)
    with llama_server(bundled("cloud")) as server, closing(PacedEngine(server, pace)) as engine:
        checks, advice = report(edgewise, "--cloud", engine.url, "--price", "0.28,0.028,0.42")
        shown = edgewise("doctor", "--cloud", engine.url, "--cloud-share", "0.1")
    assert advice["fastest"] == "edge"
    assert advice["edge"] < advice["routing"] < advice["streaming"]
    assert advice["streaming"] == pytest.approx(pace.token, rel=0.5)
    # Nearly all of a prompt sent again is cached, and 15 consults bill it all the same.
    assert advice["cost_ratio"] > 1
    assert len(advice["sentences"]) == 3
    assert "5 requests of" in checks["consult"]["detail"]
    lines = dict(line.split(": ", 1) for line in shown.out.splitlines()[-4:])
    assert list(lines) == ["Speed", "Cost", "Advice", "Next"]
    assert "price" in lines["Cost"]


def test_the_bundled_pair_is_advised_without_a_bill(edgewise: Edgewise) -> None:
    checks, advice = report(edgewise)
    assert {check["status"] for check in checks.values()} == {"ok"}
    assert checks["what leaves the device"]["detail"].startswith("nothing")
    assert advice["cost_ratio"] is None
    assert advice["routing"] > 0
    assert "60 tokens" in advice["sentences"][0]


@pytest.mark.parametrize(
    ("pair", "flags", "said"),
    [
        (0.083, "--threshold 0.7 --speculate 3", "use the large model alone: "),
        (0.036, "--threshold 0.7 --speculate 3", "route: "),
        (0.036, "", "verify: 32% less time"),
        (0.036, "--verify exact", "verify: 32% less time"),
    ],
)
def test_two_models_on_this_device_are_decoded(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, pair: float, flags: str, said: str
) -> None:
    """They compete for its cores: what each takes by itself says little of the pair."""
    asked: list[Decoder] = []

    def pace(decoder: Decoder, cloud: CloudModel, done: Callable[[], None]) -> DecodedPace:
        asked.append(decoder)
        return DecodedPace(0.034, pair, 0.053)

    monkeypatch.setattr("edgewise.cli.doctor.decoded", pace)
    checks, advice = report(edgewise, *flags.split())
    assert (advice["edge"], advice["routing"], advice["streaming"]) == (0.034, pair, 0.053)
    assert advice["sentences"][2].startswith(said)
    policy = asked[0].policy
    if "threshold" in flags:
        assert (policy.threshold, policy.speculate) == (0.7, 3)
        assert "could verify" in checks["verification"]["detail"]
        assert {"router", "consult"} <= checks.keys()
        return
    # What verifies is told of instead of a router.
    assert policy.verify == ("exact" if flags else "on")
    assert "router" not in checks
    assert checks["verification"]["detail"].startswith(f"{policy.verify}: ")
    assert "to verify 5 tokens" in checks["consult"]["detail"]


def test_an_engine_that_goes_away_fails(edgewise: Edgewise, own_engine: ScriptedEngine) -> None:
    own_engine.fault = lambda number: "error" if number >= 2 else None
    checks, advice = report(edgewise, "--cloud", own_engine.url)
    assert (checks["consult"]["status"], advice) == ("fail", None)
    assert "what leaves the device" in checks


OF_RUN = "--ctx 128 --threshold 0.5 --max-tokens 3 --span 2 --seed 1 --cloud none"
SWAPPED = f"--edge {bundled('cloud')} --cloud {bundled('edge')}"


@pytest.mark.parametrize(
    ("flags", "name", "status", "said"),
    [
        ("--verify on --threshold 0.5", "verification", "fail", ""),
        (SWAPPED, "cloud model", "warn", "smaller"),
        # It takes the flags of a command that failed.
        (OF_RUN, "edge model", "ok", "context 128$"),
    ],
)
def test_what_flags_do(edgewise: Edgewise, flags: str, name: str, status: str, said: str) -> None:
    checks, _ = report(edgewise, *flags.split())
    assert checks[name]["status"] == status
    assert re.search(said, checks[name]["detail"])
    assert flags == SWAPPED or "router" not in checks


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_tells_what_it_reads_again(edgewise: Edgewise, program: str, caches: bool) -> None:
    with llama_edge(program=program, caches=caches, lingers=2) as served:
        tokenizer = () if program == "llama-server" else ("--edge-tokenizer", "bundled")
        checks, _ = report(edgewise, "--edge", served.url, "--cloud", "none", *tokenizer)
    assert checks["rollback"]["status"] == ("ok" if caches or program == "Ollama" else "warn")
    # Of a stream that it was told to end, by its own meter; one token was taken.
    assert (f"{WRITTEN - 1} tokens" in checks["rollback"]["detail"]) == (program == "llama-server")


def test_tuned_thresholds_are_told_of(edgewise: Edgewise) -> None:
    edgewise.setenv(XDG_CACHE_HOME=str(edgewise.folder / "cache"))

    def router() -> str:
        return report(edgewise, "--router", "entropy")[0]["router"]["detail"]

    before = router()
    settings = Settings(router="entropy")
    with closing(open_edge(settings)) as edge:
        cloud, identity = nearest_cloud(settings), router_identity(settings)
        keep_tuned(edge, identity, cloud, {"0.05": 0.5})
    assert "tuned" in router() != before
