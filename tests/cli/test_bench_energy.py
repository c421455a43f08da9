"""`edgewise bench energy`: a table where there is a meter, one sentence where there is none."""

import json
import time

import pytest

from tests.cli.conftest import Edgewise

QUICK = ("bench", "energy", "--questions", "3", "--seconds", "1", "--rounds", "3")


class Clock:
    """A meter of a machine that takes ten watts, whatever it does."""

    name = "a clock"

    def joules(self) -> float:
        """Ten a second."""
        return 10 * time.monotonic()

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise_lab.commands.energy.meters", lambda: [Clock()])


@pytest.mark.usefixtures("clock")
def test_the_bundled_pair_is_measured(edgewise: Edgewise) -> None:
    result = edgewise(*QUICK, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert (found["meters"], found["rounds"]) == (["a clock"], 3)
    assert found["idle"]["median"] == pytest.approx(10, rel=0.05)
    edge, pair = found["systems"]
    assert (edge["system"], edge["cloud_tokens"]) == ("edge alone", 0)
    assert (pair["system"], pair["cloud_tokens"] > 0) == ("pair", True)
    assert edge["failed_calls"] == pair["failed_calls"] == 0
    # It takes as much at rest.
    assert abs(pair["joules"]["median"]) < 0.1 * pair["watts"]["median"] * pair["seconds"]["median"]


@pytest.mark.usefixtures("clock")
def test_without_a_cloud_the_edge_is_measured(edgewise: Edgewise) -> None:
    result = edgewise(*QUICK, "--cloud", "none")
    assert result.code == 0, result.err
    assert "J a token beyond rest" in result.out
    assert "edge alone" in result.out
    assert "pair" not in result.out


def test_without_a_meter_it_is_refused(edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch) -> None:
    for meter in ("rapl", "nvml", "powermetrics"):
        monkeypatch.setattr(f"edgewise_lab.bench.energy.{meter}", lambda *_: None)
    result = edgewise("bench", "energy")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("edgewise: Nothing here counts energy")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("no-task",), "There is no task"),
        (("--rounds", "1"), "--rounds"),
        (("--seconds", "0"), "--seconds"),
    ],
)
@pytest.mark.usefixtures("clock")
def test_what_cannot_be_measured_is_refused(
    edgewise: Edgewise, arguments: tuple[str, ...], sentence: str
) -> None:
    result = edgewise("bench", "energy", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_a_price_is_refused(edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_PRICE", "1,1,4")
    result = edgewise("bench", "energy")
    assert result.code == 2
    assert "price" in result.err.lower()
