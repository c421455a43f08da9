"""A folder of outcomes belongs to models and questions, by content."""

from contextlib import closing
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.evaluation.plan import manifest
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa


class Behind(ScriptedCloud):
    """An engine that says which model it serves."""

    def __init__(self, model: str) -> None:
        super().__init__(noise())
        self.name, self._model = "http://127.0.0.1:8080", model

    def identity(self) -> str:
        return f"{self.name} {self._model}"


def test_another_model_behind_one_address(tmp_path: Path) -> None:
    task, edge = pocketqa().first(2), ScriptedEdge(noise())
    told = [manifest(task, task, edge, Behind(model)) for model in ("small", "large", "large")]
    assert told[0] != told[1] == told[2]
    Store(tmp_path, told[0])
    with pytest.raises(UsageError, match="other models"):
        Store(tmp_path, told[1])


def test_a_model_in_this_process_is_known_by_its_weights(tmp_path: Path) -> None:
    task, edge = pocketqa().first(2), ScriptedEdge(noise())
    with closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1))) as cloud:
        assert manifest(task, task, edge, cloud)["cloud"] == cloud.model.fingerprint()
