"""Sessions at a device whose passes are known; and the script, with tiny shapes on the CPU."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.served import (
    CORRECTED,
    LIMIT,
    PACE,
    SHARE,
    WAYS,
    Request,
    holds,
    load,
    served,
    waits,
)


def sizes(_width: int) -> Iterator[int]:
    return iter((1, 2, 4))


def test_requests_of_one_width_share_a_pass_oldest_first() -> None:
    ran: list[tuple[int, int]] = []

    def run(rows: int, width: int) -> float:
        ran.append((rows, width))
        return 0.25 * width

    due = [Request(0, 1), *[Request(0.125, 4)] * 3, Request(0.2, 1, waited=False), Request(0.25, 1)]
    assert list(waits(due, run, sizes)) == [0.25, 1.125, 1.125, 1.125, 1.25]
    assert ran == [(1, 1), (4, 4), (2, 1)]
    # The clock goes on where nobody waits.
    due = [Request(0, 1), Request(5, 1)]
    assert list(waits(due, lambda rows, width: 0.5, sizes)) == [0.5, 0.5]


@pytest.mark.parametrize(("late", "held"), [(1, True), (2, False)])
def test_one_in_a_hundred_may_be_late(late: int, held: bool) -> None:
    due = [Request(second, 1 if second >= late else 8) for second in range(100)]
    assert holds(due, lambda rows, width: LIMIT * width / 2, sizes) is held


@pytest.mark.parametrize("way", WAYS)
def test_what_a_session_asks_for(way: str) -> None:
    asked = list(islice(WAYS[way](Random(0)), 20_000))
    tokens = asked[-1].due * PACE
    widths = sum(request.width for request in asked)
    if way == "written":
        assert (tokens, widths) == (len(asked) - 1, len(asked))
    elif way == "routed":
        consults = sum(request.waited for request in asked)
        assert consults / tokens == pytest.approx(SHARE, rel=0.1)
        assert tokens <= widths < 2 * tokens
    else:
        assert widths / len(asked) == pytest.approx(8, rel=0.05)
        stand = sum(1 - (1 - CORRECTED) ** size for size in (4, 4, 8, 16)) / 4 / CORRECTED
        assert tokens / len(asked) == pytest.approx(stand, rel=0.05)


def test_a_load_is_of_its_length() -> None:
    asked = load(WAYS["written"], 7, 3.0)
    assert asked == sorted(asked)
    assert len(asked) == 7 * 3 * PACE
    assert 0 <= asked[0].due <= asked[-1].due < 3


def test_served_until_passes_take_all_the_time() -> None:
    """4 sessions a pass of 20 ms: 200 tokens a second."""
    found, computed = served(WAYS["written"], 20.0, lambda rows, width: 0.02, sizes, most=99)
    assert computed == 20
    assert 18 <= found <= 20
    assert served(WAYS["written"], 1.0, lambda rows, width: 0.02, sizes, most=3)[0] == 3


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """On a machine that has room for the caches of some hundred sessions."""
    pytest.importorskip("torch")
    from benchmarks.gpu import model

    monkeypatch.setattr(model, "free_bytes", lambda device: 120_000_000)
    return model


def test_shapes_are_those_of_the_family(model: Any) -> None:
    sizes = {"0.5b": 494_032_768, "7b": 7_615_616_512, "32b": 32_763_876_352}
    counts = {name: shape.parameters for name, shape in model.SHAPES.items()}
    assert counts.items() >= sizes.items()


def test_it_computes_what_the_edge_engine_does(model: Any, tmp_path: Path) -> None:
    """A block behind others, by both; the keys are shared, the head is tied."""
    import torch

    pytest.importorskip("transformers")
    from benchmarks.gpu.__main__ import write_folder
    from edgewise.options.transformers.model import TransformersModel

    torch.manual_seed(0)
    made = model.Model(model.SHAPES["tiny"], torch.device("cpu"), rows=2, std=0.2)
    write_folder(made, tmp_path)
    ids = torch.randint(512, (2, 24))
    made.logits(ids[:, :16], 0)
    own = torch.cat([made.logits(ids[:, 16:20], 16), made.logits(ids[:, 20:21], 20)], 1)
    with TransformersModel(tmp_path, threads=1, gpu_layers=0) as other:
        logits, _ = other.run(ids[1, :21].tolist(), other.new_cache(), every=True)
    np.testing.assert_allclose(own[1].numpy(), logits[16:].numpy(), rtol=1e-3, atol=1e-3)


def test_what_does_not_fit_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(model, "free_bytes", lambda device: 2_000_000)
    with pytest.raises(MemoryError):
        model.Model(model.SHAPES["tiny"], torch.device("cpu"), rows=1)


def script(out: Path, seconds: str, *, fails: bool = False) -> Any:
    from benchmarks.gpu.__main__ import main

    brief = ["--each", "0", "--load", "0.05", "--blocks", "1"]
    asked = ["--device", "cpu", "--shape", "tiny", "--seconds", seconds, "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main([*asked, *brief])
    assert bool(ended.value.code) is fails
    return json.loads(out.read_text())


def test_the_script_writes_every_part(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    found = script(tmp_path / "out.json", "480")
    assert found["left_out"] == []
    assert [row["way"] for row in found["loop"]] == ["routed", "verified"]
    assert {(row["rows"], row["width"]) for row in found["passes"]} >= {(64, 16), (64, 1)}
    assert [row["way"] for row in found["served"]] == list(WAYS)
    assert capsys.readouterr().out.count("| tiny |") == 5


def test_what_comes_too_late_or_fails_is_said_and_what_was_found_stays(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.gpu import __main__ as script_module

    found = script(tmp_path / "out.json", "0")
    assert len(found["left_out"]) == 2
    assert found["passes"] == found["served"] == found["loop"] == []
    assert capsys.readouterr().out.count("Left out: ") == 2

    def broken(*_: object) -> None:
        raise RuntimeError("an illegal instruction")

    monkeypatch.setattr(script_module, "measure_loop", broken)
    found = script(tmp_path / "out.json", "480", fails=True)
    assert [row["why"] for row in found["left_out"]] == ["an illegal instruction"]
    assert found["passes"]
    assert len(found["served"]) == len(WAYS)
    assert "an illegal instruction" in capsys.readouterr().out
