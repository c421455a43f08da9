"""A cloud whose consults go through a function: late, failing, held back or watched."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.adapter.word_boundary import WordBoundaries
from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.errors import CloudUnavailable
from edgewise.loop.health import Breaker
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import Script, noise
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud


class Late(Flying):
    """Not done until it was looked at often enough; waiting for it is always answered."""

    def __init__(self, real: Flying, patience: int) -> None:
        super().__init__()
        self.real, self.patience = real, patience

    def done(self) -> bool:
        self.patience -= 1
        return self.patience < 0

    def result(self, timeout: float | None = None) -> Completion:
        return self.real.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self.real.exception(timeout)


def late(cloud: CloudModel, patience: Sequence[int], *, failing: int = 0) -> WrappedCloud:
    """Each consult is done after so many looks; those after a multiple of `failing` ids fail."""
    sent = 0

    def how(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        nonlocal sent
        sent += 1
        real = send()
        if failing and len(ids) % failing == 0:
            real = Flying()
            real.set_exception(CloudUnavailable("gone."))
        return Late(real, patience[sent % len(patience)])

    return WrappedCloud(cloud, how)


class HeldCloud(WrappedCloud):
    """A scripted cloud that answers no consult until it is `released`: they are `flying`."""

    def __init__(self, script: Script | None = None, **options: Any) -> None:
        self.scripted = ScriptedCloud(script or noise(), **options)
        super().__init__(self.scripted, self._hold)
        self.asked, self.released = threading.Event(), threading.Event()
        self.flying: list[Flying] = []

    def _hold(self, ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        if self.released.is_set():
            return send()
        self.scripted.asks.append((tuple(ids), n))
        self.flying.append(Flying())
        self.asked.set()
        return self.flying[-1]


class WordAdapter(Adapter):
    """Asked where a word opens alone, as a cloud that takes text is."""

    def __init__(self, cloud: CloudModel, *, own: Tokenizer, edge: Tokenizer) -> None:
        super().__init__(cloud, own=own, edge=edge)
        self.boundaries = WordBoundaries(edge)


class NeverOpen(Breaker):
    """Consults that fly already cannot know that an earlier one will fail."""

    def failed(self, *, silent: bool = False, probe: bool = False) -> None:
        pass
