"""A cloud model whose completions are held back: another pace, or a longer way."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from edgewise.cloud.base import CloudModel, CloudSession, settle
from edgewise.cloud.wrapped import WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling

Delay = Callable[[int, int], float]
"""From tokens written and prompt tokens computed to the seconds that a completion is held back."""


class LateCloud(WrappedCloud):
    """Implements `CloudModel`: `cloud`, each of whose completions is held back for a `delay`.

    Faults come as they do. Consults are held back side by side, as on a way that is long.
    """

    def __init__(self, cloud: CloudModel, delay: Delay) -> None:
        super().__init__(cloud)
        self._delay = delay

    def open(self, prompt: Prompt) -> "_LateSession":
        """A session that answers late."""
        return _LateSession(self.cloud.open(prompt), self._delay)


class _LateSession(WrappedSession):
    def __init__(self, session: CloudSession, delay: Delay) -> None:
        super().__init__(session)
        self._delay = delay

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        late: Future[Completion] = Future()
        asked = super().ask(ids, n, sampling, deadline, sent)
        late.add_done_callback(lambda _: asked.cancel() if late.cancelled() else None)
        asked.add_done_callback(lambda done: self._hold(done, late, len(ids)))
        return late

    def _hold(self, done: "Future[Completion]", late: "Future[Completion]", prompt: int) -> None:
        if done.cancelled() or done.exception() is not None:
            settle(late, done)
            return
        completion = done.result()
        computed = prompt if completion.computed is None else completion.computed
        timer = threading.Timer(self._delay(len(completion.ids), computed), settle, (late, done))
        timer.daemon = True
        timer.start()
