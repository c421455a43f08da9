"""An edge model, a router, a policy and perhaps a cloud model, ready to answer."""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.record import SentRecord
from edgewise.costs.billing import Billing
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.events import Event, Finished, FinishReason, Timing, Token, Usage
from edgewise.grammar.compiled import Grammar
from edgewise.loop.generation import Generation
from edgewise.loop.health import Breaker, Latency
from edgewise.loop.policy import Budget, Policy
from edgewise.loop.state import Rules
from edgewise.prompts import Prompt, ToolCall
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
        breaker: Breaker | None = None,
        latency: Latency | None = None,
        record: SentRecord | None = None,
        billing: Billing | None = None,
    ) -> None:
        """`record` keeps what answers send; `billing` counts and limits what they cost."""
        self.edge = edge
        self.cloud = cloud
        self.router = router
        self.policy = policy
        self.breaker = breaker or Breaker()
        self.latency = latency or Latency()
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
        around: Callable[[CloudModel], CloudModel] | None = None,
        at_end: Callable[[Budget], None] = lambda left: None,
    ) -> Generation:
        """Answer `prompt` event by event; the `Generation` is an iterator.

        `prompt` are ids, or a `Prompt` with the messages they were made from; one that must stay
        here is answered by the edge alone. Without `max_tokens` the answer goes on until the
        context is full. `budget` is what an earlier answer of the conversation left. `pending` adds
        `Pending` and `Rewound` events, `candidates` the edge's candidates to every `Token`. A
        `grammar` of the edge's vocabulary constrains the answer. `policy` and what `around` makes
        of the cloud model are for this answer; `at_end` is called once, with the budget it leaves.

        Raises `UsageError` for bad input and `ContextOverflow` for a prompt that does not fit.
        """
        given = prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt))
        if not given.ids:
            raise UsageError("The prompt is empty; give at least one character.")
        if max_tokens is None:
            max_tokens = max(1, self.edge.context - len(given.ids) + 1)
        if max_tokens < 1:
            raise UsageError(f"max-tokens must be 1 or more, not {max_tokens}.")
        if any(not text for text in stop):
            raise UsageError("A stop string is empty; leave it out.")
        cloud = around(self.cloud) if around is not None and self.cloud else self.cloud
        rules = Rules(
            policy=self._policy_for(given, policy or self.policy, cloud),
            tokenizer=self.edge.tokenizer,
            stop=tuple(stop),
            max_tokens=max_tokens,
            prompt=len(given.ids),
            context=self.edge.context,
            boundaries=None if cloud is None else cloud.boundaries,
            shown=grammar.shown if grammar else None,
        )
        return Generation(
            self,
            given,
            rules,
            cloud=cloud,
            sampling=sampling or Sampling(),
            budget=budget or Budget(),
            pending=pending,
            candidates=candidates,
            grammar=grammar,
            at_end=at_end,
        )

    def _policy_for(self, prompt: Prompt, policy: Policy, cloud: CloudModel | None) -> Policy:
        # The one place that decides it: no session is opened, so nothing can be sent.
        if prompt.local_only or (policy.asks and cloud is not None and cloud.local_only(prompt)):
            policy = policy.edge_alone()
        able = self.edge.abilities
        if able.rewinds == "no":
            # A draft that is rejected would cost reading everything again.
            policy = replace(policy, speculate=0)
        return policy

    def generate(
        self,
        prompt: Prompt | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        budget: Budget | None = None,
        grammar: Grammar | None = None,
    ) -> Answer:
        """`stream`, collected."""
        with self.stream(
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            budget=budget,
            grammar=grammar,
        ) as events:
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
