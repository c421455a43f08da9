"""What the cloud would have written: the same in this process and through an engine."""

from functools import partial
from pathlib import Path

from edgewise.cloud.local import LocalCloud
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.training.collect import Sample, read_by_cloud
from edgewise_lab.training.spending import SpendingMeter

TEXTS = [Sample(f"{i}", (*b"How?",), (*f"It is {i}.".encode(),), True) for i in range(3)]

reading = partial(read_by_cloud, meter=SpendingMeter())


def test_a_model_here_and_an_engine_elsewhere_read_alike(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    here = reading(TEXTS, LocalCloud(ScriptedEdge(noise())), folders[0])
    assert here == reading(TEXTS, ScriptedCloud(noise()), folders[1])
    assert all(len(one.cloud) == len(one.ids) for one in here)


def test_what_was_read_is_kept(tmp_path: Path) -> None:
    told: list[None] = []
    read = reading(TEXTS[:2], ScriptedCloud(noise()), tmp_path)
    cloud = ScriptedCloud(noise())
    again = reading(TEXTS, cloud, tmp_path, lambda: told.append(None))
    assert again[:2] == read
    assert len(cloud.asks) == len(TEXTS[2].ids)
    assert len(told) == 3
