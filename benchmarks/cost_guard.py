"""How many consults may go before an answer costs as much as the cloud alone?

`python -m benchmarks.cost_guard`: simulated answers of 300 tokens at a share of 5%, one token a
consult, over scripted providers that cache and bill as real ones document it. No model, no network.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.markdown import line
from edgewise.costs.billing import Billing
from edgewise.costs.meter import Limits
from edgewise.costs.price import Price, price_of
from edgewise.edge.base import Floats
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Random
from edgewise.testing.scripted_edge import SIZE, ScriptedEdge
from tests.doubles.billed_cloud import BilledCloud, PrefixCache

PROVIDERS: dict[str, tuple[str, PrefixCache | None]] = {
    "nothing cached, output 4x": ("0.6,0.6,2.4", None),
    "50%, blocks of 16, output 1x": ("0.9,0.45,0.9", PrefixCache(16, 16)),
    "10%, from 1,024, blocks of 128, output 8x": ("1.25,0.125,10", PrefixCache(1024, 128)),
    "10%, blocks of 16, output 5x": ("3,0.3,15", PrefixCache(16, 16)),
    "2%, blocks of 64, output 1.5x": ("0.28,0.0056,0.42", PrefixCache(64, 64)),
}
"""What a cached token costs of others, which are cached, and what output does; prices a million."""


class Mean(NamedTuple):
    """Of an answer: consults, and what was paid of what the cloud alone costs."""

    consults: float
    paid: float

    def __str__(self) -> str:
        return f"{self.consults:.1f}, {self.paid:.2f}x"


def letters(ids: Sequence[int]) -> Floats:
    logits = np.zeros(SIZE, np.float32)
    logits[97 + len(ids) % 26] = 20.0
    return logits


def measured(
    price: Price, cache: PrefixCache | None, options: argparse.Namespace, *, turn: int, guard: bool
) -> Mean:
    """The last of `turn` answers of each conversation, all prompts of one length."""
    consults = paid = alone = 0.0
    edge = ScriptedEdge(letters, context=1 << 16)
    for seed in range(options.answers):
        cloud = BilledCloud(letters, cache)
        billing = Billing(price, limits=Limits(alone=guard))
        policy = Policy(threshold=0.95, cloud_share=options.share)
        decoder = Decoder(edge, router=Random(seed), policy=policy, cloud=cloud, billing=billing)
        said = list(np.random.default_rng(seed).integers(97, 123, options.prompt).tolist())
        for _ in range(turn - 1):
            earlier = decoder.generate(said, max_tokens=options.tokens)
            said = [*said, *(token.id for token in earlier.tokens), 97]
        answer = decoder.generate(said, max_tokens=options.tokens)
        cost = answer.usage.cost
        assert cost is not None
        consults += answer.usage.cloud_calls
        paid, alone = paid + cost.paid, alone + cost.alone
    return Mean(consults / options.answers, paid / alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=500, help="tokens")
    parser.add_argument("--tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--answers", type=int, default=20)
    options = parser.parse_args()
    lines = line(
        ["cached at", "no limit", "never dearer", "and told what is cached", "in a second turn"],
        head=True,
    )
    for name, (prices, cache) in PROVIDERS.items():
        price = price_of(prices)
        told = replace(price, cached_from=cache.least) if cache else price
        cells = [
            measured(price, cache, options, turn=1, guard=False),
            measured(price, cache, options, turn=1, guard=True),
            measured(told, cache, options, turn=1, guard=True) if cache else "",
            measured(price, cache, options, turn=2, guard=True),
        ]
        lines += line([name, *map(str, cells)])
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
