"""Scripted models for labels: texts that are known, and a cloud that judges by the numbers."""

import re
from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Floats
from edgewise.testing.scripted_edge import EOS, SIZE, Script
from edgewise_lab.training.labels.published import JUDGE_PAIRS

_DRAFTS = re.compile(r"The first goes on:\n(.*)\n\nThe second goes on:\n(.*)\n\nDo both", re.DOTALL)
_END = "one word, yes or no."


def judging(script: Script, answers: Sequence[str] = ("yes", "no")) -> Script:
    """Answers a judge's question with `answers`, same if the numbers are; else goes by `script`."""

    def judge(ids: Sequence[int]) -> Floats:
        text = bytes(token for token in ids if token < 256).decode()
        question, end, written = text.partition(_END)
        if not end:
            return script(ids)
        reply = [*answers[0 if _same(question) else 1].encode(), EOS]
        logits = np.zeros(SIZE, np.float32)
        logits[reply[min(len(written), len(reply) - 1)]] = 20.0
        return logits

    return judge


def drafts(ids: Sequence[int]) -> tuple[str, str] | None:
    """The two drafts of a judge's question; None for another prompt."""
    found = _DRAFTS.search(bytes(token for token in ids if token < 256).decode())
    return None if found is None else (found[1], found[2])


def _same(question: str) -> bool:
    found = _DRAFTS.search(question)
    assert found is not None
    for pair, known in JUDGE_PAIRS:
        if (pair.first, pair.second) == (found[1], found[2]):
            return known
    return re.findall(r"\d+", found[1]) == re.findall(r"\d+", found[2])
