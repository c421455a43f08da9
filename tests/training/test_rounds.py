"""What a training does as its label says: by what it is fitted, who writes, in which rounds."""

from pathlib import Path

import pytest

from edgewise.errors import UsageError
from edgewise.routers.card import read_card
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import replying
from edgewise_lab.training.labels.base import labels_named
from tests.training.scripted_training import CLOUD, EDGE, PROMPT, scripted, training


def test_two_rounds_of_citer(tmp_path: Path) -> None:
    """The second round's branches are written by the pair under the first one's router."""
    folder = tmp_path / "router"
    first, second = labels_named("citer")
    reference = "Oh it is 7."
    # Both differ from the reference here and there, so that branches are rolled out.
    cloud = ScriptedCloud(replying("Ah it is 7.", prompt=PROMPT.format(0)))
    one = training(folder, second, reference=reference, cloud=cloud)
    one.collect()
    with pytest.raises(UsageError, match="no router"):
        one.label()
    begun = training(folder, first, reference=reference, cloud=cloud)
    begun.label()
    begun.fit()
    with pytest.raises(UsageError, match="not calibrated"):
        one.label()
    begun.calibrate()
    one.run()
    assert "by the pair" in read_card(folder).label
    data = folder / "data"
    assert {path.name for path in data.iterdir() if "calibration" not in path.name} == {
        "reference-00000.safetensors",
        "labels-citer-edge.jsonl",
        "labels-citer-pair.jsonl",
    }
    one.fit()  # and again, though the card of the round before is gone


def test_a_second_round_is_labelled_by_the_router_of_its_own_first(tmp_path: Path) -> None:
    """Another router in the same folder has values of its own; the same one's are kept."""

    def rounds(inputs: tuple[str, ...]) -> int:
        """How often the cloud was asked for the labels of the second round."""
        cloud = ScriptedCloud(replying("Ah it is 7.", prompt=PROMPT.format(0)))
        first, second = (
            training(
                tmp_path / "router", label, reference="Oh it is 7.", cloud=cloud, inputs=inputs
            )
            for label in labels_named("citer")
        )
        first.run()
        before = len(cloud.asks)
        second.label()
        asked = len(cloud.asks) - before
        second.fit()
        return asked

    log = tmp_path / "router" / "data" / "labels-citer-pair.jsonl"
    assert rounds(("hidden",)) > 0
    held = log.read_bytes()
    assert rounds(("hidden",)) == 0
    assert log.read_bytes() == held
    assert rounds(("scalars",)) > 0
    assert rounds(("hidden",)) == 0
    # Kept, and the last ones again.
    assert log.read_bytes().endswith(held)


def test_only_who_writes_for_a_label_is_asked(tmp_path: Path) -> None:
    cloud = ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)))
    edge = scripted(EDGE)
    one = training(tmp_path / "router", cloud=cloud, edge=edge)
    one.collect()
    opened = cloud.opened
    assert opened == 20
    one.label()
    assert (cloud.opened, edge.sessions) == (opened, 0)
