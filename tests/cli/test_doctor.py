"""What `edgewise doctor` measures."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.edge.base import Tokenizer
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict
from tests.cli.conftest import Edgewise


class Recorded(CloudModel):
    """A cloud that keeps what it is asked."""

    asked: ClassVar[list[list[int]]] = []

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self.name = url

    def open(self, prompt: Prompt) -> CloudSession:
        return RecordedSession()

    def check(self, tokenizer: Tokenizer) -> str:
        return "taken as it is"

    def close(self) -> None:
        """Nothing to let go of."""


class RecordedSession:
    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        Recorded.asked.append(list(ids))
        future: Future[Verdict] = Future()
        future.set_result(Verdict(ids=(33,) * n, logprobs=(None,) * n))
        return future

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return 0

    def close(self) -> None:
        """Nothing to forget."""


def test_a_warm_consult_has_something_to_read(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question once more would be answered from the cache, without a decode."""
    point = EntryPoint("recorded", f"{__name__}:Recorded", "edgewise.cloud")
    monkeypatch.setattr(
        "edgewise.registry.entry_points",
        lambda **wanted: [point] if wanted.get("group") == point.group else [],
    )
    monkeypatch.setattr(Recorded, "asked", [])
    done = edgewise("doctor", "--cloud", "made://up", "--cloud-engine", "recorded", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    assert checks["consult"]["status"] == "ok"
    first, *later = Recorded.asked
    for more, ids in enumerate(later, 1):
        assert len(ids) == len(first) + more
        assert ids[: len(first) + more - 1] == Recorded.asked[more - 1]
    assert f"at first, {len(first)} tokens to read" in checks["consult"]["detail"]
    assert f"warm, one more to read (best of {len(later)})" in checks["consult"]["detail"]
