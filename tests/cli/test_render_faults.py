"""What is said on stderr of consults that failed."""

import pytest

from edgewise.cli import render
from edgewise.errors import CloudUnavailable
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Constant
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying


@pytest.mark.parametrize(("failing", "warned"), [(0, None), (1, False), (99, True)])
def test_a_cloud_that_never_helped_is_a_warning(
    failing: int, warned: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    script = replying("blue", prompt="sky? ")
    cloud = ScriptedCloud(
        script, fault=lambda ask: CloudUnavailable("gone.") if ask < failing else None
    )
    decoder = Decoder(ScriptedEdge(script), router=Constant(1.0), policy=Policy(), cloud=cloud)
    collect(render.painted(decoder.stream(list(b"sky? "))))
    said = capsys.readouterr().err
    assert ("gone" in said) == (warned is not None)
    assert ("Warning" in said) == bool(warned)
