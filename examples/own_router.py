"""A router of one's own on the bundled pair: ask the cloud where the edge is surprised.

python examples/own_router.py "Tell me about copper."
"""

import math
import sys

from edgewise import Decoder, LlamaModel, LocalCloud, Policy, Token
from edgewise.addresses import bundled
from edgewise.edge.base import Needs, Step
from edgewise.prompts import Message, prompt_ids


class Surprise:
    """One minus the probability of the likeliest token."""

    needs, top = Needs.ENTROPY, 0

    def score(self, step: Step) -> float:
        """From 0 to 1."""
        return 1.0 - math.exp(step.logprob(step.proposed))


def main(prompt: str) -> None:
    """Print the answer, the cloud's tokens in brackets."""
    edge, cloud = LlamaModel(bundled("edge")), LocalCloud(LlamaModel(bundled("cloud")))
    decoder = Decoder(edge, router=Surprise(), policy=Policy(threshold=0.5), cloud=cloud)
    with decoder.stream(prompt_ids(edge.tokenizer, [Message("user", prompt)])) as events:
        for event in events:
            if isinstance(event, Token):
                written = f"[{event.text}]" if event.source == "cloud" else event.text
                print(written, end="", flush=True)
    print()
    cloud.close()
    edge.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Tell me about copper.")
