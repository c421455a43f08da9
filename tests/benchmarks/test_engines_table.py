"""Engines take turns with one model, each in a process of its own."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.engine_models import installed, models_for
from benchmarks.engines import abilities_table, install_size, measured, required, speeds_table

ROUNDS = 2


def test_every_engine_that_is_installed(bpe_path: Path, tmp_path: Path) -> None:
    engines = installed()
    models = models_for(engines, bpe_path, tmp_path)
    assert models == models_for(engines, bpe_path, tmp_path), "they are converted once"
    options = Namespace(context=8, tokens=4, rounds=ROUNDS, threads=1)
    runs = measured(models, options)
    assert list(runs) == engines
    for run in runs.values():
        assert len(run.rounds) == ROUNDS
        assert all(found.bare > 0 and found.decoder > 0 for found in run.rounds)
        assert run.peak > 1
        assert (run.facts.hidden, run.facts.rewinds) == (True, "anywhere")
    for table in (abilities_table(runs), speeds_table("tiny", runs)):
        assert len(table) == 2 + len(runs)
        assert len({row.count("|") for row in table}) == 1
    assert "| `llamacpp` | 4 bits |" in speeds_table("tiny", runs)[2]


def test_what_an_engine_adds_is_counted_once() -> None:
    pytest.importorskip("onnxruntime_genai")
    base, more = required(["numpy"]), required(["numpy", "onnxruntime-genai"])
    assert base == {"numpy"}
    assert {"numpy", "onnxruntime-genai", "onnxruntime"} <= more
    assert install_size("llamacpp").endswith(" MB")
    assert install_size("onnx").startswith("+")
    assert install_size("onnx") != "+0 MB"
