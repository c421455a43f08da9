"""A script for models that are asked in the middle of their answers."""

from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Floats
from edgewise.testing.scripted_edge import EOS, SIZE, Script


def completing(*texts: str, prompt: str) -> Script:
    """Goes on with the first of `texts` that begins as what was written, or writes EOS."""
    whole = [[*text.encode(), EOS] for text in texts]
    start = len(prompt.encode())

    def script(ids: Sequence[int]) -> Floats:
        written = list(ids[start:])
        logits = np.zeros(SIZE, np.float32)
        fitting = (text for text in whole if text[: len(written)] == written != text)
        logits[next(fitting, [*written, EOS])[len(written)]] = 20.0
        return logits

    return script
