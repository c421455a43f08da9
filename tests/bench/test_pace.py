"""An edge at another's pace: the figures in between, and sessions that are as slow as told."""

import time
from collections.abc import Callable

import pytest

from edgewise.edge.base import Needs
from edgewise.errors import ContextOverflow
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from edgewise_lab.bench.pace import UNPACED, Pace, PacedEdge, measured

IDS = list(b"sky: ")


def test_in_between_it_is_linear_and_beyond_in_proportion() -> None:
    pace = Pace((1, 3, 5), (0.1, 0.3, 0.4))
    assert pace.of(1) == pytest.approx(0.1)
    assert pace.of(2) == pytest.approx(0.2)
    assert pace.of(4) == pytest.approx(0.35)
    assert pace.of(5) == pytest.approx(0.4)
    assert pace.of(10) == pytest.approx(0.8)


def test_a_pass_takes_at_least_as_long_as_its_ids() -> None:
    """A prompt costs what it costs on its own, whatever the model kept of earlier ones."""
    pace = Pace((1, 10), (0.02, 0.2))
    edge = PacedEdge(ScriptedEdge(replying("yes", prompt="sky: ")), pace)
    session = edge.session(Needs.ENTROPY)

    def takes(ids: int, run: Callable[[], object]) -> None:
        begun = time.monotonic()
        run()
        assert time.monotonic() - begun >= pace.of(ids)

    for _ in range(2):
        session.open(IDS)
        takes(5, session.step)
    session.extend(list(b"y"))
    takes(1, session.step)
    session.rewind(2)
    session.extend([1, 2, 3])
    takes(3, session.step)
    takes(2, lambda: session.steps([4, 5]))
    session.close()
    assert (edge.decodes, edge.positions) == (5, 16)


def test_everything_else_is_the_models_own() -> None:
    model = ScriptedEdge(replying("yes", prompt="sky: "), context=8)
    edge = PacedEdge(model, UNPACED)
    assert (edge.name, edge.context, edge.tokenizer) == ("scripted", 8, model.tokenizer)
    session = edge.session()
    session.open(IDS)
    assert session.position == len(IDS)
    assert session.step().proposed == ord("y")
    with pytest.raises(ContextOverflow):
        session.extend([1] * 9)
    session.close()
    assert model.sessions == 0


def test_a_models_own_pace_is_measured_and_nothing_is_left_open() -> None:
    model = ScriptedEdge(noise())
    pace = measured(model, repeats=2)
    assert pace.ids[0] == 1
    assert list(pace.ids) == sorted(pace.ids)
    assert len(pace.seconds) == len(pace.ids)
    assert all(seconds > 0 for seconds in pace.seconds)
    assert model.sessions == 0
