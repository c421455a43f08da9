"""A router of one's own on the bundled pair: ask the cloud where the edge is surprised.

python examples/own_router.py QUESTION
"""

import math
import sys

from edgewise import Needs, Pair, Step, Token

QUESTION = "Question: What are wine, horse and spaghetti? Come to the point. Answer and Reasoning:"


class Surprise:
    """One minus the probability of the likeliest token."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        """From 0 to 1."""
        return 1.0 - math.exp(step.logprob(step.proposed))


def main(prompt: str) -> None:
    """Print the answer, the cloud's tokens in brackets."""
    with Pair(router=Surprise(), threshold=0.5) as pair, pair.stream(prompt) as events:
        for event in events:
            if isinstance(event, Token):
                written = f"[{event.text}]" if event.source == "cloud" else event.text
                print(written, end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
