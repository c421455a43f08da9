"""`edgewise eval --workers`: the same figures, and nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.llama_server_process import llama_server

pytestmark = pytest.mark.deep

PATIENCE = 60.0


@pytest.fixture(params=["bundled", "llama-server"])
def cloud(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "bundled":
        yield "bundled"
        return
    with llama_server(bundled("cloud")) as url:
        yield url


def test_figures_and_run_log_do_not_depend_on_workers(
    edgewise: Edgewise, tmp_path: Path, cloud: str
) -> None:
    command = ("eval", "pocketqa", "--limit", "4", "--calibration", "4", "--cloud", cloud, "--json")

    def told(*more: str) -> tuple[object, list[object]]:
        done = edgewise(*command, *more)
        assert (done.code, done.err) == (0, "")
        kept = (tmp_path / more[-1] / "outcomes.jsonl").read_text().splitlines()
        return without(json.loads(done.out)), [without(json.loads(line)) for line in kept]

    # At a server the meter of its cache depends on what it was asked before.
    timed = {"seconds", "tokens_per_second"}
    measured = {"cached", "computed", "prompt_computed", "prompt_cached", "cloud_work"}
    left_out = timed if cloud == "bundled" else timed | measured

    def without(found: object) -> object:
        if isinstance(found, dict):
            return {name: without(one) for name, one in found.items() if name not in left_out}
        return [without(one) for one in found] if isinstance(found, list) else found

    one = told("--out", "one")
    assert told("--workers", "2", "--out", "two") == one
    # What was begun by one is gone on with by two.
    kept = tmp_path / "one" / "outcomes.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:5]))
    assert told("--workers", "2", "--out", "one") == one


def test_interrupted_it_ends_at_once_and_leaves_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgewise", "eval", "pocketqa", "--no-baselines"]
    command += ["--router", "bundled", "--calibration", "4", "--workers", "2", "--out", "out"]
    started = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Whoever runs the tests in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    kept = tmp_path / "out" / "outcomes.jsonl"
    end = time.monotonic() + PATIENCE
    while not (kept.exists() and kept.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=PATIENCE)
    assert (started.returncode, out.strip()) == (130, b"")
    assert b"Traceback" not in err
    while time.monotonic() < end:
        with suppress(PermissionError):
            try:
                os.killpg(started.pid, 0)
            except ProcessLookupError:
                return
        time.sleep(0.05)
    pytest.fail("processes are left")
