"""Several processes answer: the same outcomes in order, and one sentence where one dies."""

import multiprocessing
import re
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgewise.errors import EdgewiseError
from edgewise.settings import Settings
from edgewise_lab.evaluation.plan import Job, Work, Workers
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

QUESTIONS = pocketqa().questions[:6]
SETTINGS = Settings(edge="bundled", cloud="bundled", threads=1)
TOKENS = 48


def work(settings: Settings = SETTINGS) -> Work:
    return Work(settings, {}, TOKENS, 300.0)


def test_a_worker_that_dies_is_one_sentence() -> None:
    with Workers(work(), 2) as workers:
        outcomes = workers.answers(Job("edge"), QUESTIONS * 50)
        next(outcomes)
        multiprocessing.active_children()[0].kill()
        with pytest.raises(EdgewiseError, match="worker") as raised:
            list(outcomes)
    assert raised.value.setting == "workers"


def test_what_a_worker_cannot_do_it_says_as_one_process_would() -> None:
    missing = replace(SETTINGS, edge="./nowhere.gguf")
    with Workers(work(missing), 2) as workers, pytest.raises(EdgewiseError, match=r"nowhere\.gguf"):
        list(workers.answers(Job("edge"), QUESTIONS))


@pytest.mark.skipif(sys.platform != "linux", reason="reads what a process ignores in /proc")
def test_ctrl_c_is_for_the_process_that_began_them() -> None:
    """All are there from the beginning, and a worker that is still importing ignores it, too."""
    with Workers(work(), 3):
        children = multiprocessing.active_children()
        assert len(children) == 3
        for child in children:
            status = Path(f"/proc/{child.pid}/status").read_text()
            (ignored,) = re.findall(r"SigIgn:\t(\w+)", status)
            assert int(ignored, 16) & 1 << (signal.SIGINT - 1)
