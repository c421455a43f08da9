"""The table of the paper's method taken apart, from made-up figures."""

from benchmarks.paper_parts import Found, agreement, table
from edgewise_lab.bench.method_parts import MethodTimes, each_alone, each_left_out, ladder
from edgewise_lab.bench.methods import OURS, PAPER, Method

VARIANTS = [*ladder(), *each_alone(), *each_left_out()]


def seconds(method: Method) -> float:
    """Each part takes a fifth of ten seconds away."""
    return 10.0 - 1.8 * sum(method)


def found() -> Found:
    made: Found = {
        method: MethodTimes(
            seconds=(seconds(method), 2 * seconds(method)),
            up=100.0,
            computed=7.0 if method.ids else None,
            consults=4,
            changed=3,
        )
        for method in {variant.method for variant in VARIANTS}
    }
    made[None] = MethodTimes(seconds=(0.5, 0.5), up=0.0, computed=0.0, consults=0, changed=0)
    return made


def test_each_way_has_its_line() -> None:
    lines = table("random", found(), VARIANTS)
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert len(rows) == 1 + len(VARIANTS)
    assert "75% of consults changed" in lines[0]
    named = {row[0]: row[1:] for row in rows}
    assert named["the edge alone"][0] == "500"
    # Medians, and ratios of the same round.
    assert named["the paper's method"][:3] == ["15000", "", "1.00 (1.00 to 1.00)"]
    assert named["+ run-ahead"][:3] == ["1500", "0.36 (0.36 to 0.36)", "10.0 (10.0 to 10.0)"]
    assert named["ours - run-ahead"][1] == "2.80 (2.80 to 2.80)"
    # In text nothing is known of what was computed.
    assert named["+ KV cache on the device"][-1] == "100"
    assert named["+ token ids"][-2:] == ["100", "7"]


def test_pairs_are_compared_by_how_often_they_agree() -> None:
    lines = agreement({"same": found(), "never": found()})
    assert len(lines) == 4
    assert "75% of 4" in lines[2]
    assert seconds(PAPER) / seconds(OURS) == 10.0
    assert lines[3].endswith("| 0.36 (0.36 to 0.36) | 10.0 (10.0 to 10.0) |")
