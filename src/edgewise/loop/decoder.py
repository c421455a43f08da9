"""An edge model, a router, a policy and perhaps a cloud model, ready to answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.record import SentRecord
from edgewise.costs.meter import AnswerCosts, Billing, CloudTokens
from edgewise.edge.base import EdgeModel, Needs
from edgewise.errors import UsageError
from edgewise.events import Event, Finished, FinishReason, Timing, Token, Usage
from edgewise.grammar.compiled import Grammar
from edgewise.loop.consults import Consults
from edgewise.loop.generation import Generation
from edgewise.loop.health import Breaker, Latency
from edgewise.loop.policy import Budget, Policy
from edgewise.loop.speculate import Speculation
from edgewise.loop.state import Rules
from edgewise.loop.tiers import AnyConsults, Tier, TieredConsults, TierLink
from edgewise.prompts import Prompt, ToolCall, last_turn
from edgewise.routers.base import Router
from edgewise.sampling import Sampling


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, collected from its events; `tool_calls` are no part of its text."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[Token, ...]
    usage: Usage
    timing: Timing
    tool_calls: tuple[ToolCall, ...] = ()


class Decoder:
    """The parts of an answer; any number of answers, one after the other or in threads."""

    def __init__(
        self,
        edge: EdgeModel,
        *,
        router: Router,
        policy: Policy,
        cloud: CloudModel | None = None,
        trusted: bool = False,
        further: Sequence[Tier] = (),
        breaker: Breaker | None = None,
        latency: Latency | None = None,
        record: SentRecord | None = None,
        billing: Billing | None = None,
    ) -> None:
        """`record` keeps what answers send; `billing` counts and limits what they cost.

        `cloud` may see what is local if it is `trusted`. The clouds `further` away are asked where
        it is unsure; only the last one's tokens are billed.
        """
        self.edge, self.cloud = edge, cloud
        self.router, self.policy = router, policy
        self.breaker = breaker or Breaker()
        self.latency = latency or Latency()
        self.record = record or SentRecord()
        self.billing = billing
        self.trusted, self.further = trusted, tuple(further)

    def stream(
        self,
        prompt: Prompt | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        budget: Budget | None = None,
        pending: bool = False,
        candidates: bool = False,
        grammar: Grammar | None = None,
        policy: Policy | None = None,
        at_end: Callable[[Budget], None] = lambda left: None,
    ) -> Generation:
        """Answer `prompt` event by event; the `Generation` is an iterator.

        `prompt` are ids, or a `Prompt` with the messages they were made from; one that is local
        only is answered by the edge alone. Without `max_tokens` the answer goes on until the
        context is full. `budget` is what an earlier answer of the conversation left. `pending` adds
        `Pending` and `RolledBack` events, `candidates` the edge's candidates to every `Token`. A
        `grammar` of the edge's vocabulary constrains the answer. `policy` is for this answer;
        `at_end` is called once, with the budget it leaves.

        Raises `UsageError` for bad input and `ContextOverflow` for a prompt that does not fit.
        """
        prompt = prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt))
        if not prompt.ids:
            raise UsageError("The prompt is empty; give at least one character.")
        if max_tokens is None:
            max_tokens = max(1, self.edge.context - len(prompt.ids) + 1)
        if max_tokens < 1:
            raise UsageError(f"max-tokens must be 1 or more, not {max_tokens}.")
        if any(not text for text in stop):
            raise UsageError("A stop string is empty; leave it out.")
        policy = policy or self.policy
        tiers = self._tiers(prompt, policy)
        alone = not tiers and (prompt.local_only or (policy.asks and self.cloud is not None))
        rules = Rules(
            policy=self._policy_for(policy, alone=alone),
            sampling=sampling or Sampling(),
            tokenizer=self.edge.tokenizer,
            stop=tuple(stop),
            max_tokens=max_tokens,
            prompt=len(prompt.ids),
            context=self.edge.context,
            boundaries=tiers[0].cloud.boundaries if tiers else None,
            shown=grammar.shown if grammar else None,
            constraint=grammar.constraint(len(prompt.ids)) if grammar else None,
            pending=pending,
            candidates=candidates,
        )
        return self._generation(prompt, rules, tiers, budget or Budget(), at_end)

    def _generation(
        self,
        prompt: Prompt,
        rules: Rules,
        tiers: Sequence[Tier],
        budget: Budget,
        at_end: Callable[[Budget], None],
    ) -> Generation:
        """Open the sessions of an answer; the `Generation` closes them."""
        ids, cloud = list(prompt.ids), tiers[-1].cloud if tiers else self.cloud
        costs = self.billing and AnswerCosts(
            self.billing,
            CloudTokens(prompt.ids, rules.tokenizer, cloud),
            cloud.requests if cloud is not None else lambda n: (1, n),
            whole=not rules.stop and rules.prompt + rules.max_tokens <= rules.context + 1,
            cloud_alone=rules.policy.cloud_share == 1,
        )
        with ExitStack() as stack:
            logits = Needs.NOTHING if rules.sampling.greedy else Needs.LOGITS
            edge = self.edge.session(self.router.needs | logits, top=self.router.top)
            stack.callback(edge.close)
            cached = edge.open(ids)
            if self.edge.abilities.rewinds == "checkpoints":
                # An edited message, or a template that rewrites the last turn, comes back to there.
                edge.checkpoint(last_turn(rules.tokenizer, prompt))
            consults = self._consults(prompt, ids, rules, tiers, costs, stack)
            if consults is not None:
                # While the edge reads the prompt the cloud can, too.
                consults.prefetch(ids, budget)

            def over(left: Budget) -> None:
                if costs is not None:
                    costs.close(ids)
                at_end(left)

            return Generation(
                ids,
                rules,
                Speculation(ids, edge, self.router, consults, rules),
                consults,
                budget=budget,
                costs=costs,
                cached=cached,
                closing=stack.pop_all(),
                at_end=over,
            )

    def _tiers(self, prompt: Prompt, policy: Policy) -> list[Tier]:
        """The clouds that this answer may ask, nearest first.

        The one place that decides it: for others no session is opened, so nothing can be sent.
        """
        if self.cloud is None or not policy.asks:
            return []
        nearest = Tier(
            self.cloud,
            share=None,
            trusted=self.trusted,
            breaker=self.breaker,
            latency=self.latency,
        )
        return [tier for tier in (nearest, *self.further) if tier.may_see(prompt)]

    def _consults(
        self,
        prompt: Prompt,
        ids: list[int],
        rules: Rules,
        tiers: Sequence[Tier],
        costs: AnswerCosts | None,
        stack: ExitStack,
    ) -> AnyConsults | None:
        """Sessions with the clouds; `stack` closes them. None without a cloud."""
        opened: list[Consults] = []
        for tier in tiers:
            cloud = tier.cloud
            # Closed last: what leaves while the session closes is recorded, too.
            sent = self.record.answer(prompt, cloud.name, cloud.own_tokenizer or rules.tokenizer)
            session = cloud.open(prompt)
            stack.callback(session.close)
            consults = Consults(
                session,
                sent,
                rules._replace(boundaries=cloud.boundaries),
                breaker=tier.breaker,
                latency=tier.latency,
                meter=costs if tier is tiers[-1] else None,
                local=cloud.here,
            )
            stack.callback(consults.drop)
            opened.append(consults)
        if not self.further or not opened:
            return opened[0] if opened else None
        links = [TierLink(tier, one, ids) for tier, one in zip(tiers, opened, strict=True)]
        for link in links:
            stack.callback(link.settle)
        return TieredConsults(links, rules.policy.max_cloud_tokens)

    def _policy_for(self, policy: Policy, *, alone: bool) -> Policy:
        if alone:
            policy = policy.edge_alone()
        if self.edge.abilities.rewinds == "no":
            # A draft that is rejected would cost reading everything again.
            policy = replace(policy, speculate=0)
        return policy

    def generate(self, prompt: Prompt | Sequence[int], **options: Any) -> Answer:
        """`stream`, collected."""
        with self.stream(prompt, **options) as events:
            return collect(events)


def collect(events: Iterator[Event]) -> Answer:
    """The answer that a stream of events tells."""
    tokens: list[Token] = []
    for event in events:
        if isinstance(event, Token):
            tokens.append(event)
        elif isinstance(event, Finished):
            return Answer(
                text="".join(token.text for token in tokens) + event.text,
                finish_reason=event.finish_reason,
                tokens=tuple(tokens),
                usage=event.usage,
                timing=event.timing,
            )
    raise ValueError("the events end without Finished")
