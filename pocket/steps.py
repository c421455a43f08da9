"""Word problems: what two people have changes, and one of them is asked about."""

from __future__ import annotations

from random import Random

from pocket import frames
from pocket.frames import say
from pocket.questions import Question, Wording, numbered

LARGEST_TOTAL = 99
LINES = (3, 4, 4, 5)
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
    """A word problem of three to five lines whose totals stay within 1 and LARGEST_TOTAL.

    Both people's totals are worked out, in the order told; only one of them is asked for.
    """
    style = rng.choice(wording.styles)
    people = rng.sample(frames.NAMES, 2)
    item = rng.choice(frames.ITEMS)
    totals = {name: rng.randint(3, 90) for name in people}
    told = [
        wording.asked(frames.START, rng, name=name, a=totals[name], item=item) for name in people
    ]
    done: list[str] = []
    for _ in range(rng.choice(LINES)):
        name = rng.choice(people)
        before = totals[name]
        sign, n, after = _change(before, rng)
        words = {"name": name, "a": before, "n": n, "b": after}
        told.append(wording.asked(frames.CHANGES[sign], rng, **words))
        lines = {"explain": frames.WORKED, "check": frames.SUMMED, "notes": frames.TOTALS}[style]
        done.append(say(lines[sign], rng, **words))
        totals[name] = after
    name = rng.choice(people)
    told.append(wording.asked(frames.HOW_MANY, rng, name=name, item=item))
    cue = wording.cue("sums" if style == "check" else style, rng)
    return numbered("steps", style, " ".join(told), totals[name], " ".join(done), cue, rng)
