"""The scripted cloud keeps the contract's promises."""

from edgewise.cloud.base import ConsultRequest
from edgewise.prompts import Prompt
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import replying


def test_an_ask_is_of_its_moment_and_a_cancelled_one_stays_cancelled() -> None:
    ids = list(b"sky: ")
    cloud = ScriptedCloud(replying("yes", prompt="sky: "), delay=0.05)
    session = cloud.open(Prompt(tuple(ids)))
    cancelled, asked = (session.ask(ConsultRequest(ids, 1, 30)) for _ in range(2))
    assert cancelled.cancel()
    ids.append(ord("y"))
    assert asked.result(60).ids == tuple(b"y")
    assert cancelled.cancelled()
