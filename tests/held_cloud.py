"""A cloud that keeps those who ask it waiting, for what happens meanwhile."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from edgewise.completion import Completion, Sent
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud, ScriptedCloudSession
from edgewise.testing.scripted_edge import Script, noise


class HeldCloud(ScriptedCloud):
    """Answers no consult until it is `released`: they are `flying`, and it was `asked`."""

    def __init__(self, script: Script | None = None, **options: Any) -> None:
        super().__init__(script or noise(), **options)
        self.asked, self.released = threading.Event(), threading.Event()
        self.flying: list[Future[Completion]] = []

    def open(self, prompt: Prompt) -> "_HeldSession":
        return _HeldSession(self)


class _HeldSession(ScriptedCloudSession):
    def __init__(self, cloud: HeldCloud) -> None:
        super().__init__(cloud)
        self._gate = cloud

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        if self._gate.released.is_set():
            return super().ask(ids, n, sampling, deadline, sent)
        future: Future[Completion] = Future()
        self._gate.flying.append(future)
        self._gate.asked.set()
        return future
