"""`edgewise bench link`, over a real link and engine."""

import pytest

from tests.cli.conftest import Edgewise

pytestmark = pytest.mark.deep

LINK = ("bench", "link", "--questions", "2")


def test_a_link_is_measured_on_the_bundled_pair(edgewise: Edgewise) -> None:
    found = edgewise.json(*LINK, "--round-trip", "60", "--pace", "0.5b")
    (row,) = found["rows"]
    assert row["questions"] == 2
    advice = found["advice"]
    assert advice["fastest"] in ("edge", "routing", "streaming")
    assert "60 ms" in " ".join(advice["sentences"])
    assert row["round_trip"] == 0.06
    assert row["step"] >= 0.029
    assert row["identical"] == 2
    assert row["bound"] >= 1
    assert row["waiting"]["value"] > 1
    # Speculation decodes at least once a token.
    assert row["decodes_per_token"] >= 1
