"""Rules for which tokens of an answer the cloud writes, applied to many answers (rows) at once."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from edgewise_lab.bench.rules.models import Tensor

Then = Literal["token", "word", "window"]
"""What a rule does where it wants the cloud's token; see `Rule`."""

WINDOW = 6
MEMORY = 16
"""About how many recent tokens the running mean behind the signal `spike` goes over."""

_LEAST_MEAN = 0.05


class Rule(msgspec.Struct, frozen=True):
    """A rule by which the cloud writes some tokens: those where a signal reaches a threshold.

    `signal` is a key of `SIGNALS`. A rule that `verifies` applies only where the two models'
    likeliest tokens differ, and then always to an answer's first token. `then` says what a rule
    does where it applies. "token": the cloud writes that token. "word": the cloud goes on to the
    end of the word. "window": the edge's token is written, and stays if both models agree on the
    next `WINDOW` tokens; else all are rolled back and the cloud's is written (like the window of
    FLy, arXiv 2511.22972). If `threshold` is None, one is searched for each target cloud share.
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
    """What both models predict for the next token of each row; fields [rows], logprobs in nats.

    `edge` and `cloud` are their likeliest ids. `edge_p` and `second` are the edge's logprobs of its
    likeliest and second id, `cloud_p` and `best` the cloud's of `edge` and of `cloud`. `entropy` is
    the edge's (nats). `rank` is how many ids are likelier to the cloud than `edge`. `mean` is the
    running mean of -`cloud_p` over about `MEMORY` tokens, `random` a random number from 0 to 1.
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
    # Of two tokens with the same rank, the less probable has the higher signal.
    "rank": lambda seen: seen.rank - seen.cloud_p.exp(),
    "spike": lambda seen: -seen.cloud_p / seen.mean.clamp(min=_LEAST_MEAN),
    "entropy": lambda seen: seen.entropy,
    "max-prob": lambda seen: 1 - seen.edge_p.exp(),
    "edge margin": lambda seen: 1 - seen.edge_p.exp() + seen.second.exp(),
    "random": lambda seen: seen.random,
}
"""Signals by name, each [rows]; a higher one means more need of the cloud."""


CHUNK = 256
"""Rows whose logits are evaluated at a time: all rows over a vocabulary need too much memory."""


def look(torch: Any, logits: Sequence[Tensor], mean: Tensor, random: Tensor) -> Seen:
    """Return the predictions in two `logits` [rows, vocabulary], the edge's and the cloud's.

    Ids that only one of them has are ignored. `mean` and `random` [rows] go into the result.
    """
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
    """The rules of a batch as tensors [rows]; `signal` is an index into `SIGNALS`."""

    signal: Tensor
    threshold: Tensor
    verifies: Tensor
    word: Tensor
    window: Tensor

    def wants(self, torch: Any, seen: Seen, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each row whether its rule wants the cloud's token, and the rule's signal.

        `first` marks first tokens. Where a rule verifies and the models agree, the signal is -inf.
        """
        every = torch.stack([signal(seen) for signal in SIGNALS.values()])
        own = every.gather(0, self.signal[None])[0]
        same = seen.edge == seen.cloud
        own = own.masked_fill(self.verifies & same, -float("inf"))
        return (own >= self.threshold) | (self.verifies & first & ~same), own


def columns_of(torch: Any, rules: Sequence[tuple[Rule, float]], device: Any) -> RuleColumns:
    names = list(SIGNALS)
    columns = (
        [names.index(rule.signal) for rule, _ in rules],
        [threshold for _, threshold in rules],
        [rule.verifies for rule, _ in rules],
        [rule.then == "word" for rule, _ in rules],
        [rule.then == "window" for rule, _ in rules],
    )
    return RuleColumns._make(torch.tensor(column, device=device) for column in columns)
