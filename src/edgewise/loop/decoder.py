"""The decoder: an edge model, a router, a `Policy` and perhaps cloud models, ready to answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.record import SentRecord
from edgewise.costs.meter import AnswerCosts, Billing, CloudTokens, Limits
from edgewise.edge.base import EdgeModel, Needs
from edgewise.errors import UsageError
from edgewise.events import Event, Finished, FinishReason, Timing, Token, Usage
from edgewise.grammar.compiled import Grammar
from edgewise.loop.clouds import Clouds
from edgewise.loop.counts import AnswerCounts
from edgewise.loop.generation import Generation, close_abandoned
from edgewise.loop.health import Breaker
from edgewise.loop.one_cloud import CloudConsults, Tier
from edgewise.loop.policy import Budget, Escalation, Policy
from edgewise.loop.speculate import Speculation
from edgewise.loop.state import Rules, State
from edgewise.loop.verify import READS_ALONG, Verification
from edgewise.prompts import Prompt, ToolCall, last_turn
from edgewise.routers.base import Router
from edgewise.sampling import Sampling


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. A `Decoder` leaves `tool_calls` empty: tool calls are part of its `text`."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[Token, ...]
    usage: Usage
    timing: Timing
    tool_calls: tuple[ToolCall, ...] = ()


class Decoder:
    """Answers prompts with an edge model and perhaps cloud models, by a router and a policy.

    One decoder gives any number of answers, one after the other or in several threads.
    """

    def __init__(
        self,
        edge: EdgeModel,
        *,
        router: Router,
        policy: Policy,
        cloud: CloudModel | None = None,
        breaker: Breaker | None = None,
        tiers: Sequence[Tier] = (),
        record: SentRecord | None = None,
        billing: Billing | None = None,
        escalation: Escalation | None = None,
    ) -> None:
        """`tiers` are the clouds, nearest first; a `cloud`, with its `breaker`, goes before them.

        `record` lists what answers send; `billing` sums and limits the costs of the last cloud.
        `escalation` chooses the answers that a cloud that `reads_passages` writes as a whole.
        """
        self.escalation = escalation
        self.edge, self.router, self.policy = edge, router, policy
        nearest = [] if cloud is None else [Tier(cloud, share=None, breaker=breaker)]
        self.tiers = [*nearest, *tiers]
        self.cloud = self.tiers[0].cloud if self.tiers else None
        self.record = record or SentRecord()
        self.billing = billing

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
        follow: Callable[[Budget], Budget] = lambda budget: budget,
        at_end: Callable[[Budget], None] = lambda left: None,
    ) -> Generation:
        """Return a `Generation`, an iterator over the events of the answer to `prompt`.

        `prompt`: token ids, or a `Prompt`; one marked local is sent to trusted clouds only. By
        default the answer may fill the context, and sampling is greedy. The answer ends before any
        string of `stop`. `budget`: how much the cloud may write, `Generation.budget` of the
        conversation's last answer (None: a new one). `pending` adds events about draft tokens
        (`Pending`, `RolledBack`), `candidates` the edge's likeliest ids to every `Token`. `grammar`
        constrains the answer, `policy` replaces the decoder's. `follow` gets the budget before a
        verdict on a token is applied, and returns it, perhaps changed; `at_end` gets the rest.
        Raises `UsageError` for invalid arguments; iterating, it, `EdgeError` or `CloudError`.
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
        # The one place that decides it: for other clouds no session is opened, so nothing is sent.
        tiers = [tier for tier in self.tiers if policy.asks and _is_open(tier, prompt, policy)]
        if not tiers and (prompt.local_only or (policy.asks and self.tiers)):
            policy = policy.edge_alone()
        if self.edge.abilities.rewinds == "no":
            # A draft that is rejected would cost reading everything again.
            policy = replace(policy, speculate=0, verify="off")
        rules = Rules(
            policy=policy,
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
            verify=bool(tiers) and self._can_verify(tiers[0], policy),
            passages=bool(tiers) and tiers[0].cloud.reads_passages,
        )
        return self._generation(prompt, rules, tiers, budget or Budget(), follow, at_end)

    def _can_verify(self, nearest: Tier, policy: Policy) -> bool:
        """Whether the nearest cloud verifies the answer, as one that reads passages always does."""
        if nearest.cloud.reads_passages:
            return True
        # Without `reads_once` a whole prompt is billed for each draft token.
        limited = self.billing is not None and self.billing.limits != Limits(alone=False)
        cloud = nearest.cloud
        able = policy.verifies and cloud.verifies
        return able and nearest.share is None and (cloud.reads_once or not limited)

    def _escalates(self, rules: Rules) -> Escalation | None:
        """Return what chooses whole answers, None if nothing; under a share of 1 all are chosen."""
        if not rules.passages:
            return None
        return Escalation(1.0) if rules.policy.cloud_share == 1 else self.escalation

    def _generation(
        self,
        prompt: Prompt,
        rules: Rules,
        tiers: Sequence[Tier],
        budget: Budget,
        follow: Callable[[Budget], Budget],
        at_end: Callable[[Budget], None],
    ) -> Generation:
        """Open the sessions of an answer; the returned `Generation` closes them."""
        # They may hold the slot that this answer needs.
        close_abandoned()
        ids, cloud = list(prompt.ids), self.tiers[-1].cloud if self.tiers else None
        costs = self.billing and AnswerCosts(
            self.billing,
            CloudTokens(prompt.ids, rules.tokenizer, cloud),
            cloud.requests if cloud is not None else lambda n: (1, n),
            whole=not rules.stop and rules.prompt + rules.max_tokens <= rules.context + 1,
            cloud_alone=rules.policy.cloud_share == 1,
        )
        with ExitStack() as stack:
            logits = Needs.NOTHING if rules.sampling.greedy else Needs.LOGITS
            router = READS_ALONG if rules.verify else self.router
            edge = self.edge.session(router.needs | logits, top=router.top)
            stack.callback(edge.close)
            cached = edge.open(ids)
            if self.edge.abilities.rewinds == "checkpoints":
                # An edited message, or a template that rewrites the last turn, comes back to there.
                edge.checkpoint(last_turn(rules.tokenizer, prompt))
            consults = self._consults(prompt, ids, rules, tiers, costs, stack)
            speculation = Speculation(ids, edge, router, consults, rules)
            if rules.verify and consults is not None:
                speculation = Verification(
                    ids, edge, consults, rules, budget, self._escalates(rules)
                )
            if consults and consults.prefetches:
                # While the edge reads the prompt the cloud can, too.
                consults.prefetch(ids, budget)
            return Generation(
                ids,
                rules,
                speculation,
                consults,
                state=State(budget=budget),
                counts=AnswerCounts(
                    rules, cached, consults.counts if consults else (), several=len(self.tiers) > 1
                ),
                costs=costs,
                # What fails before this line closes all that was opened.
                closing=stack.pop_all(),
                follow=follow,
                at_end=at_end,
            )

    def _consults(
        self,
        prompt: Prompt,
        ids: list[int],
        rules: Rules,
        tiers: Sequence[Tier],
        costs: AnswerCosts | None,
        stack: ExitStack,
    ) -> Clouds | None:
        """Open the sessions with the clouds, which `stack` closes; None without a cloud."""
        clouds: list[CloudConsults] = []
        for tier in tiers:
            cloud = tier.cloud
            # Closed last: what leaves while the session closes is recorded, too.
            sent = self.record.answer(prompt, cloud.name, cloud.own_tokenizer or rules.tokenizer)
            session = cloud.open(prompt)
            stack.callback(session.close)
            meter = costs if tier is self.tiers[-1] else None
            clouds.append(CloudConsults(tier, session, sent, ids, rules, meter))
            stack.callback(clouds[-1].close)
        cap = rules.policy.max_cloud_tokens if len(self.tiers) > 1 else None
        return Clouds(clouds, cap=cap) if clouds else None

    def generate(self, prompt: Prompt | Sequence[int], **options: Any) -> Answer:
        """Return the whole answer to `prompt`; `options` and errors are those of `stream`."""
        with self.stream(prompt, **options) as events:
            return collect(events)


def _is_open(tier: Tier, prompt: Prompt, policy: Policy) -> bool:
    """Whether a cloud may see the prompt, and can do what the policy wants (some only read)."""
    able = policy.verifies or policy.cloud_share == 1 or not tier.cloud.reads_passages
    return tier.may_see(prompt) and able


def collect(events: Iterator[Event]) -> Answer:
    """Return the `Answer` of a stream's events. Raises `ValueError` if they lack a `Finished`."""
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
