"""The default router, and where thresholds start that nobody calibrated."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from msgspec.structs import replace

from edgewise import Pair, opening
from edgewise.addresses import bundled
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.routers import thresholds
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, read_card
from edgewise.routers.named import router_named, router_of
from edgewise.settings import Settings
from edgewise_lab.training.publish import save_card

EDGE = str(bundled("edge"))


def computed(edge: EdgeModel, router: Router) -> list[float]:
    return pytest.fail("computed again")


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled router as one that comes with the package for the edge model of a file."""
    folder = tmp_path / "routers" / "pocket"
    copytree(bundled("router"), folder)
    monkeypatch.setattr(opening, "bundled", tmp_path.joinpath)
    return folder


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EdgeModel]:
    """With a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with closing(opening.open_edge(Settings(edge=EDGE))) as made:
        yield made


def test_what_is_tuned_is_of_one_model(edge: EdgeModel) -> None:
    large = Settings(edge=EDGE, cloud="https://api.example", cloud_model="a", router="entropy")
    identity = opening.router_identity(large)
    thresholds.keep_tuned(edge, identity, opening.nearest_cloud(large), {"0.05": 0.123})
    router = router_named("entropy")
    assert opening.starts_of(large, router, None, edge) == {"0.05": 0.123}
    small = replace(large, cloud_model="b")
    assert opening.starts_of(small, router, None, edge).get("0.05") != 0.123
    # A threshold of a tiny share is kept, too.
    tuned = {f"{share:g}": 0.5 for share in (0.00005, 0.000015, 0.5, 1)}
    thresholds.keep_tuned(edge, "router", "cloud", tuned)
    assert thresholds.tuned_thresholds(edge, "router", "cloud") == tuned


def test_a_share_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = Path(copytree(bundled("router"), tmp_path / "r"))
    card = json.loads((folder / CONFIG).read_text())
    for share in ("1..5e-2", "5e", "x"):
        (folder / CONFIG).write_text(json.dumps({**card, "thresholds": {share: 0.5}}))
        with pytest.raises(UsageError):
            Pair(router=folder, cloud="none")


def test_auto_is_the_bundled_router_beside_the_bundled_edge() -> None:
    for named in (None, "auto"):
        with Pair("bundled", router=named, cloud="none") as pair:
            assert pair.card == read_card(bundled("router"))


def test_auto_is_the_router_known_for_the_edge_model(known: Path, edge: EdgeModel) -> None:
    card, settings = read_card(known), Settings(edge=EDGE)
    with Pair(EDGE, cloud="none") as pair:
        assert pair.card == card
    # It needs no training beside an unknown edge.
    save_card(known, replace(card, edge_fingerprint="another", behaviour=()))
    assert opening.chosen_router(settings, edge) == opening.FALLBACK_ROUTER
    assert opening.chosen_router(replace(settings, router="random"), edge) == "random"


@pytest.mark.parametrize("name", ["entropy", "max-prob", "margin"])
def test_thresholds_start_at_scores_of_the_edges_own_writing(
    name: str, edge: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, router = Settings(edge=EDGE, cloud="bundled", router=name), router_named(name)
    found = opening.starts_of(settings, router, None, edge)
    scores = np.array(thresholds.own_scores(edge, router))
    for share, threshold in found.items():
        assert (scores >= threshold).mean() == pytest.approx(float(share), abs=0.02)
    assert opening.make_policy(settings, found).threshold == found["0.05"]
    # Kept for the next start.
    monkeypatch.setattr(thresholds, "own_scores", computed)
    assert opening.starts_of(settings, router, None, edge) == found


def test_a_start_that_was_kept_badly_is_computed_again(tmp_path: Path, edge: EdgeModel) -> None:
    found = thresholds.own_thresholds(edge, router_named("entropy"), "id")
    (record,) = (tmp_path / "edgewise" / "starts").iterdir()
    bad = (b"{}}", b'{"0.05": 7}', b'{"x": 0.5}', b"{}", b'{"\xff": 0.5}', b'{"x": ' + b"[" * 10**5)
    for held in bad:
        record.write_bytes(held)
        assert thresholds.own_thresholds(edge, router_named("entropy"), "id") == found


def test_nothing_is_computed_needlessly(edge: EdgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opening.open_edge(Settings(edge=EDGE, ctx=48))) as small:  # for any prompt
        assert thresholds.own_scores(small, router_named("entropy")) == []
    monkeypatch.setattr(thresholds, "own_scores", computed)
    for settings in (
        Settings(edge=EDGE, cloud="bundled", router="entropy", threshold=0.3),
        Settings(edge=EDGE, cloud="bundled", router="entropy", cloud_share=0.0),
        Settings(edge=EDGE, cloud="none", router="entropy"),
        Settings(edge=EDGE, cloud="bundled", router="random"),
    ):
        assert opening.starts_of(settings, router_named(str(settings.router)), None, edge) == {}


def test_a_short_answer_spends_about_the_share() -> None:
    with Pair("bundled", router="max-prob", cloud_share=0.1) as pair:
        usage = [pair.ask(prompt, max_tokens=40).usage for prompt in thresholds.PROMPTS]
    cloud = sum(one.cloud_tokens for one in usage)
    assert 0.05 <= cloud / (cloud + sum(one.edge_tokens for one in usage)) <= 0.15


def test_the_router_for_the_bundled_edge_on_a_server_is_small_and_reads_no_hidden_state() -> None:
    (folder,) = (path.parent for path in bundled("routers").glob("*/config.json"))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 100_000
    card = read_card(folder)
    assert {*card.inputs} <= {"top_logprobs", "text", "ranks"}
    assert card.behaviour
    assert card.measured
    assert router_of(card, folder).needs
