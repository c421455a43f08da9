"""Counts of an answer's tokens and of its requests to cloud models, reported as a `Usage`."""

from collections.abc import Sequence
from functools import reduce

from edgewise.cloud.record import SentAnswer
from edgewise.completion import Completion, metered
from edgewise.errors import CloudError, CloudTimeout, NothingUsable
from edgewise.events import SentCounts, TierUsage, Token, Usage
from edgewise.loop.state import Rules


class CloudCounts:
    """Counts of the requests of one answer to one cloud, and of the tokens that they brought.

    `wanted`: how often the cloud was to be asked. `calls`: finished requests; `failed`: those of
    them that brought nothing usable; `dropped`: requests given up before they had finished.
    `wrote`: tokens in the answer that the cloud wrote. `brought`: tokens that it returned, and
    those asked for in requests that were dropped or timed out. `unused`: the part of `brought` from
    dropped requests and from those where another cloud's completion was used; requests for a whole
    answer do not count. By the usage reports, `cached` and `computed` count prompt tokens (None
    once a report lacked that count), and `written` output tokens in the cloud's vocabulary.
    """

    def __init__(self, sent: SentAnswer) -> None:
        self.sent = sent
        self.wanted = self.calls = self.failed = self.wrote = 0
        self.dropped = self.brought = self.unused = self.written = 0
        self.cached: int | None = 0
        self.computed: int | None = 0

    def over(
        self, outcome: Completion | CloudError, asked: int, *, failed: bool, overruled: bool
    ) -> None:
        """Count a finished request for `asked` tokens, and the usage report in its `outcome`.

        `failed`: nothing of it can be used; for example, the response format forbids the
        completion. `overruled`: another cloud's completion is used instead, so this one's tokens
        are added to `brought` and `unused`. A timeout adds `asked` to `brought`. The tokens of a
        completion that is used are added to `brought` by the decoding loop.
        """
        self.calls += 1
        self.failed += failed
        meter = outcome.meter if isinstance(outcome, NothingUsable) else outcome
        if isinstance(meter, Completion):
            self.cached = metered(self.cached, meter.cached)
            self.computed = metered(self.computed, meter.computed)
            self.written += meter.billed
        lost = 0
        if isinstance(outcome, CloudTimeout):
            # The cloud may still write them.
            lost = asked
        elif overruled and isinstance(outcome, Completion):
            lost = len(outcome.ids)
        self.brought += lost
        self.unused += lost if overruled else 0

    def drop(self, asked: int, *, whole: bool) -> None:
        """Count a request that was given up; its `asked` tokens are added to `brought`.

        They are added to `unused`, too, unless the request was for a `whole` answer.
        """
        self.dropped += 1
        self.brought += asked
        self.unused += 0 if whole else asked


class AnswerCounts:
    """Counts of an answer's tokens and of its requests to clouds.

    The loop sets `repeats` when it cuts an answer that repeats itself, and `escalated` when a cloud
    writes the whole answer.
    """

    def __init__(
        self, rules: Rules, cached: int, clouds: Sequence[CloudCounts], *, several: bool
    ) -> None:
        """`cached` prompt ids were in the edge's KV cache; `several`: `Usage` lists each cloud."""
        self._rules, self._cached, self._clouds, self._several = rules, cached, clouds, several
        self._tokens = self._verified = self._corrections = 0
        self._lowest: tuple[float, int] | None = None
        self._anew = self.repeats = self.escalated = False

    def wrote(self, token: Token) -> None:
        """Count `token`, the next of the answer.

        A cloud's token is a correction if the edge had another there, or if it is in a sentence
        that the cloud rewrote.
        """
        self._tokens += 1
        if token.reason == "verified":
            self._verified += 1
            if token.ratio is not None:
                told = token.ratio, token.index
                self._lowest = told if self._lowest is None else min(self._lowest, told)
        self._anew = token.reason == "corrected" or (self._anew and token.reason == "span")
        self._corrections += self._anew or token.draft not in (None, token.id)

    def usage(self) -> Usage:
        """Return all counts as a `Usage`. At least one token must have been counted."""
        clouds, (lowest, at) = self._clouds, self._lowest or (None, None)
        wrote = sum(one.wrote for one in clouds)
        wasted = sum(one.brought for one in clouds) - wrote
        review = "passages" if self._rules.passages else "tokens"
        return Usage(
            prompt_tokens=self._rules.prompt,
            cached_tokens=self._cached,
            edge_tokens=self._tokens - wrote,
            cloud_tokens=wrote,
            wasted_tokens=wasted,
            correction_tokens=self._corrections,
            # More may be wasted than the answer has.
            cloud_share=min(1.0, (wrote + wasted) / self._tokens),
            cloud_calls=sum(one.calls + one.dropped for one in clouds),
            failed_calls=sum(one.failed for one in clouds),
            cloud_prompt_cached=reduce(metered, (one.cached for one in clouds), 0),
            cloud_prompt_computed=reduce(metered, (one.computed for one in clouds), 0),
            cloud_completion_tokens=sum(one.written for one in clouds),
            verified_tokens=self._verified,
            lowest_ratio=lowest,
            lowest_at=at,
            review=review if self._rules.verify else None,
            escalated=self.escalated,
            repeats=self.repeats,
            sent=_summed([one.sent.counts() for one in clouds]),
            tiers=tuple(map(_tier, clouds)) if self._several else (),
        )


def _tier(one: CloudCounts) -> TierUsage:
    counts = {name: getattr(one, name) for name in ("wanted", "calls", "failed", "wrote")}
    return TierUsage(cloud=one.sent.host, sent=one.sent.counts(), **counts)


def _summed(counts: Sequence[SentCounts]) -> SentCounts:
    return SentCounts(
        host=", ".join(dict.fromkeys(one.host for one in counts if one.host)) or None,
        consults=sum(one.consults for one in counts),
        prefetches=sum(one.prefetches for one in counts),
        bytes=sum(one.bytes for one in counts),
        tokens=sum(one.tokens for one in counts),
    )
