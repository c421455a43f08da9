"""A server whose cloud never helps says so in its log: once, not with every answer."""

import logging

import pytest

from edgewise.errors import CloudUnavailable
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying
from tests.server.in_process import app


@pytest.mark.parametrize(("failing", "said"), [(10**9, 1), (1, 0)])
def test_consults_that_all_fail_are_a_warning(
    failing: int, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = replying("blue", prompt="sky? ")
    cloud = ScriptedCloud(
        script, fault=lambda ask: CloudUnavailable("gone.") if ask < failing else None
    )
    asked = {"model": "edgewise@1.0", "prompt": "sky? ", "max_tokens": 4}
    with caplog.at_level(logging.WARNING), app(edge=ScriptedEdge(script), cloud=cloud) as client:
        for _ in range(2):
            assert client.post("/v1/completions", json=asked).status_code == 200
    found = [one for one in caplog.records if one.name == "edgewise.server.answering"]
    assert len(found) == said
