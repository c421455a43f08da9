"""What a reader of an evaluation must be told: figures of a router far from its own questions."""

from collections.abc import Sequence

from edgewise_lab.evaluation.plan import QUERY_LEVEL, Contender
from edgewise_lab.evaluation.report import Figures, Row
from edgewise_lab.evaluation.tasks.base import Task

FAR = 0.25
"""A realised share this far from the one asked for (relative) is another one."""


def cautions(task: Task, contenders: Sequence[Contender], table: Sequence[Row]) -> list[str]:
    """A sentence for each router that was made for other questions, or misses its share.

    A share is missed where all of its 95 % interval lies further off than `FAR`, so that few
    questions alone raise no alarm. Whole questions are sent within a share, not at one.
    """
    told = [_made_for_others(task, contender) for contender in contenders]
    figures = [row.overall for row in table]
    for system in dict.fromkeys(one.system for one in figures if one.system != QUERY_LEVEL):
        told.append(_missed([one for one in figures if one.system == system]))
    return [sentence for sentence in told if sentence]


def _made_for_others(task: Task, contender: Contender) -> str | None:
    card = contender.card
    if card is None:
        return None
    # "NAME, 4500 questions", as training writes it.
    for verb, made in (("trained", card.trained_on), ("calibrated", card.calibrated_on)):
        if made and made.rpartition(", ")[0] != task.name:
            return (
                f"The router {contender.name!r} was {verb} on {made}, not on {task.name}: what it "
                "realises and recovers here says little about its own questions, and its "
                "thresholds little about these."
            )
    return None


def _missed(points: Sequence[Figures]) -> str | None:
    off = [
        f"{one.cloud_share:.1%} where {one.share_asked:.0%} was asked for"
        for one in points
        if one.share_asked is not None and _is_far(one, one.share_asked)
    ]
    if not off:
        return None
    return (
        f"{points[0].system} realised a cloud share of {', '.join(off)}: its scores are spread "
        "otherwise on these questions than on those that its thresholds were set on."
    )


def _is_far(figures: Figures, asked: float) -> bool:
    low, high = figures.share_interval
    return low > (1 + FAR) * asked or high < (1 - FAR) * asked
