"""Word problems: what two people have changes, and one of them is asked about."""

from __future__ import annotations

from random import Random

from pocket import frames
from pocket.frames import say
from pocket.questions import Question, Wording, numbered

LARGEST_TOTAL = 99
LINES = (1, 2, 2)
"""Changes for a person, each as often as it stands here."""
EASY = 0.6
"""How often a change is an easy one: by 1 or by 10."""
IDLE = 0.15
"""How often nothing changes."""


def _change(total: int, rng: Random) -> tuple[str, int, int]:
    """One change of a total: operation, operand, new total."""
    if rng.random() < IDLE:
        return "=", 0, total
    easy = rng.random() < EASY
    if not easy and rng.random() < 0.2 and 2 <= total <= LARGEST_TOTAL // 2:
        n = rng.randint(2, min(9, LARGEST_TOTAL // total))
        return "*", n, total * n
    fitting = [n for n in (1, 10) if n < total] if easy else list(range(2, min(60, total)))
    room = [n for n in ((1, 10) if easy else range(2, 60)) if total + n <= LARGEST_TOTAL]
    if room and (rng.random() < 0.5 or not fitting):
        n = rng.choice(room)
        return "+", n, total + n
    n = rng.choice(fitting)
    return "-", n, total - n


def steps(wording: Wording, rng: Random) -> Question:
    """A word problem of two people with one or two changes each, totals within 1 and LARGEST_TOTAL.

    Both people's totals are worked out, one after the other; only the second one is asked for.
    """
    style = rng.choice(wording.styles)
    people = rng.sample(frames.NAMES, 2)
    item = rng.choice(frames.ITEMS)
    told: list[str] = []
    done: list[str] = []
    worked = {"explain": frames.WORKED, "short": frames.SUMMED, "notes": frames.TOTALS}[style]
    name, total = "", 0
    for name in people:
        total = rng.randint(3, 90)
        told.append(wording.asked(frames.START, rng, name=name, a=total, item=item))
        for _ in range(rng.choice(LINES)):
            sign, n, after = _change(total, rng)
            words = {"name": name, "a": total, "n": n, "b": after}
            told.append(wording.asked(frames.CHANGES[sign], rng, **words))
            done.append(say(worked[sign], rng, **words))
            total = after
        done.append(say(frames.LEFT, rng, name=name, b=total))
    told.append(wording.asked(frames.HOW_MANY, rng, name=name, item=item))
    cue = wording.cue("sums" if style == "short" else style, rng)
    return numbered("steps", style, " ".join(told), total, " ".join(done), cue, rng)
