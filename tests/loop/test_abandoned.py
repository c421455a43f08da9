"""An answer that nobody closes is closed when Python drops it, wherever that is."""

import gc
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from edgewise.edge.base import Floats
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise
from edgewise.testing.scripted_edge import SIZE

IDS = tuple(b"Q: sky? A:")


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Garbage is collected where a test says so, and of what the test made alone."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_one_that_is_broken_off_is_closed_at_once() -> None:
    edge, cloud = ScriptedEdge(noise(1)), ScriptedCloud(noise(2))
    decoder = Decoder(edge, cloud=cloud, router=Constant(1.0), policy=Policy(threshold=0.5))
    for _ in decoder.stream(IDS):
        break
    assert (edge.sessions, cloud.closed) == (0, 1)


@pytest.mark.usefixtures("no_collector")
def test_one_in_a_cycle_is_closed_where_no_lock_is_held() -> None:
    """Seen: collected in the middle of another answer's pass, it waited for that pass for ever."""
    passes: list[int] = []

    def script(ids: Sequence[int]) -> Floats:
        passes.append(gc.collect())
        return np.zeros(SIZE, np.float32)

    edge = ScriptedEdge(script)
    decoder = Decoder(edge, router=Constant(0.0), policy=Policy(threshold=1.0))
    left: list[object] = [decoder.stream(IDS)]
    left.append(left)
    assert edge.sessions == 1
    del left
    decoder.generate(IDS, max_tokens=2)
    assert passes
    decoder.generate(IDS, max_tokens=2)
    assert edge.sessions == 0
