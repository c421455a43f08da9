"""Rules: which token of an answer the cloud writes, for many rows at a time."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from edgewise_lab.bench.rules.models import Tensor

Then = Literal["token", "word", "window"]
"""What follows a correction: nothing, the rest of the word by the cloud, or a look at what comes:
the edge's token is left if the next `WINDOW` agree with the cloud (FLy)."""

WINDOW = 6
MEMORY = 16
"""Tokens over which `spike` has its mean."""

_LEAST_MEAN = 0.05


class Rule(msgspec.Struct, frozen=True):
    """The cloud writes where `signal` reaches a threshold.

    If it `verifies`, only where it would write another token, and at an answer's first token all
    that it would; as the product has it. Without a `threshold` of its own a share sets it.
    """

    name: str
    signal: str
    verifies: bool = True
    then: Then = "token"
    threshold: float | None = None


RULES = (
    *(Rule(f"verify {signal}", signal) for signal in ("ratio", "p", "margin", "rank", "spike")),
    Rule("verify ratio + word", "ratio", then="word"),
    Rule("verify ratio + window", "ratio", then="window"),
    Rule("verify edge entropy", "entropy"),
    Rule("verify random", "random"),
    Rule("exact", "ratio", threshold=-1e9),
    Rule("max-prob", "max-prob", verifies=False),
    Rule("entropy", "entropy", verifies=False),
    Rule("margin", "edge margin", verifies=False),
    Rule("random", "random", verifies=False),
)
EDGE = Rule("edge", "random", verifies=False, threshold=2.0)
CLOUD = Rule("cloud", "random", verifies=False, threshold=-1.0)


class Seen(NamedTuple):
    """What both models say of the next token of each row; [rows], log-probs in nats.

    `edge` and `cloud` are their likeliest ids, `edge_p` and `cloud_p` log-probs of the edge's by
    each, `second` the edge's of its second, `best` the cloud's of its own; `rank` is the edge's
    token's by the cloud, from 0. `mean` is that of -`cloud_p` over the tokens before, `random` from
    0 to 1.
    """

    edge: Tensor
    cloud: Tensor
    edge_p: Tensor
    second: Tensor
    entropy: Tensor
    cloud_p: Tensor
    best: Tensor
    rank: Tensor
    mean: Tensor
    random: Tensor


SIGNALS: dict[str, Callable[[Seen], Tensor]] = {
    "ratio": lambda seen: seen.best - seen.cloud_p,
    "p": lambda seen: -seen.cloud_p,
    "margin": lambda seen: seen.best.exp() - seen.cloud_p.exp(),
    # Of one rank, the less probable comes first.
    "rank": lambda seen: seen.rank - seen.cloud_p.exp(),
    "spike": lambda seen: -seen.cloud_p / seen.mean.clamp(min=_LEAST_MEAN),
    "entropy": lambda seen: seen.entropy,
    "max-prob": lambda seen: 1 - seen.edge_p.exp(),
    "edge margin": lambda seen: 1 - seen.edge_p.exp() + seen.second.exp(),
    "random": lambda seen: seen.random,
}
"""Higher is more in need of the cloud."""


CHUNK = 256
"""Rows whose logits are read at a time: both vocabularies of all would not fit in memory."""


def look(torch: Any, logits: Sequence[Tensor], mean: Tensor, random: Tensor) -> Seen:
    """Reads the logits [rows, vocabulary] of edge and cloud, in the ids that both have."""
    edge, cloud = logits
    size = min(edge.shape[1], cloud.shape[1])
    parts: list[tuple[Tensor, ...]] = []
    for begin in range(0, len(edge), CHUNK):
        rows = slice(begin, begin + CHUNK)
        small = edge[rows, :size].float().log_softmax(1)
        large = cloud[rows, :size].float().log_softmax(1)
        (own, second), (own_id, _) = (found.unbind(1) for found in small.topk(2))
        best, best_id = large.max(1)
        given = large.gather(1, own_id[:, None])
        entropy = -(small.exp() * small).sum(1)
        rank = (large > given).sum(1).float()
        parts.append((own_id, best_id, own, second, entropy, given[:, 0], best, rank))
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    return Seen._make([*columns, mean, random])


class RuleColumns(NamedTuple):
    """The rules of rows: [rows] of each field, `signal` an index into `SIGNALS`."""

    signal: Tensor
    threshold: Tensor
    verifies: Tensor
    word: Tensor
    window: Tensor

    def wants(self, torch: Any, seen: Seen, first: Tensor) -> tuple[Tensor, Tensor]:
        """Where the cloud is to write, and the signals; -inf where there is nothing to correct."""
        every = torch.stack([signal(seen) for signal in SIGNALS.values()])
        own = every.gather(0, self.signal[None])[0]
        same = seen.edge == seen.cloud
        own = own.masked_fill(self.verifies & same, -float("inf"))
        return (own >= self.threshold) | (self.verifies & first & ~same), own


def columns_of(torch: Any, rules: Sequence[tuple[Rule, float]], device: Any) -> RuleColumns:
    """Of a rule and its threshold for each row."""
    names = list(SIGNALS)
    columns = (
        [names.index(rule.signal) for rule, _ in rules],
        [threshold for _, threshold in rules],
        [rule.verifies for rule, _ in rules],
        [rule.then == "word" for rule, _ in rules],
        [rule.then == "window" for rule, _ in rules],
    )
    return RuleColumns._make(torch.tensor(column, device=device) for column in columns)
