"""The paper's cell, end to end on random models of Qwen2.5's shape: it runs, it goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_qwen import Shape, build
from tests.llama_server_process import llama_server

ROOT = Path(__file__).parents[2]
EDGE = Shape(hidden=64, layers=2, heads=4, kv_heads=2, ffn=128, vocabulary=1024, eos=1020)
CLOUD = EDGE._replace(hidden=96, layers=3, heads=6)


def questions(path: Path, count: int, word: str) -> Path:
    """In CommonsenseQA's format."""
    lines = [
        {
            "id": f"{word}{i}",
            "answerKey": "ABCDE"[i % 5],
            "question": {
                "stem": f"Which {word} is number {i}?",
                "choices": [{"label": c, "text": f"{word} {c}"} for c in "ABCDE"],
            },
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_whole_cell(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    edge = build(tmp_path / "edge.gguf", shape=EDGE)
    cloud = build(tmp_path / "cloud.gguf", shape=CLOUD, seed=1)
    train = questions(tmp_path / "train.jsonl", 24, "tree")
    dev = questions(tmp_path / "dev.jsonl", 5, "bird")
    with llama_server(cloud) as url:
        command = [sys.executable, "-m", "benchmarks.paper_cell", "--edge", str(edge)]
        command += ["--cloud", url, "--out", str(tmp_path / "cell"), "--label", "mismatch"]
        command += ["--train-data", str(train), "--data", str(dev), "--calibration", "3"]
        command += ["--shares", "0.07", "--ctx", "512"]
        for _ in range(2):  # the second time it finds everything done
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"},
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("query-level") >= 2
    assert {path.suffix for path in (tmp_path / "cell").glob("dev-*.*")} == {".csv", ".png"}
