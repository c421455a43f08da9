"""What answers cost, what the cloud alone would have cost, and whether to send another request.

Finished requests count as the provider's usage report bills them, requests in flight at the most
that they may cost. The decoding loop calls `AnswerCosts.admits` before each request and `sent`
after it; at the end of an answer, `cost` for its usage, and `close`.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.cloud.base import CloudModel
from edgewise.cloud.passages import question
from edgewise.completion import Completion, Outgoing
from edgewise.costs.daily import DailyTotal, today
from edgewise.costs.price import NOTHING, BilledTokens, Price
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, common_prefix
from edgewise.errors import CloudError, CloudUnavailable
from edgewise.events import AnswerCost

UNLIMITED = 1 << 30
"""What `AnswerCosts.admits` returns if the number of HTTP requests is not limited."""

REMEMBERED = 64
"""How many answers' ids are remembered, as the provider's cache may hold them."""


class Limits(NamedTuple):
    """Limits on costs, in the currency of the price list.

    With `alone`, an answer may not cost more than if the cloud alone wrote it. `answer` is the most
    for one answer, `day` for all answers of a day; None sets no limit.
    """

    alone: bool = True
    answer: Decimal | None = None
    day: Decimal | None = None


class CostReport(NamedTuple):
    """The tokens `billed` for `answers` answers; `alone`: what the cloud alone would have cost."""

    billed: BilledTokens = NOTHING
    alone: Decimal = Decimal(0)
    answers: int = 1

    def shown(self, price: Price) -> AnswerCost:
        """Return the costs at `price` as an `AnswerCost`, the form in events and replies."""
        paid = price.of(self.billed)
        return AnswerCost(
            paid=float(paid),
            alone=float(self.alone),
            saved=float(self.alone - paid),
            currency=price.currency,
            input_tokens=self.billed.input,
            cached_tokens=self.billed.cached,
            output_tokens=self.billed.output,
            estimated=self.billed.estimated,
        )


class Billing:
    """Price, limits and summed costs of all answers of a `Pair` (edge and cloud). Thread-safe."""

    def __init__(
        self, price: Price, *, limits: Limits | None = None, daily: DailyTotal | None = None
    ) -> None:
        """`limits` None stands for `Limits()`; `daily` has the day's total, for `limits.day`.

        If that is set, an unusable `daily` raises `UsageError`, and `daily` None admits no request.
        """
        self.price, self.limits, self.daily = price, limits or Limits(), daily
        if self.limits.day is not None and daily is not None:
            daily.require_usable()
        self._lock = threading.Lock()
        self._sent = deque[NDArray[np.int32]](maxlen=REMEMBERED)
        self.forget()

    def savings(self) -> AnswerCost:
        """Return what ended answers cost since `forget`, and how much less than the cloud alone."""
        return self.sums.shown(self.price)

    def add(self, report: CostReport) -> None:
        """Add the costs of an answer that has ended to the sums that `savings` returns."""
        with self._lock:
            billed, alone, answers = self.sums
            self.sums = CostReport(
                billed + report.billed, alone + report.alone, answers + report.answers
            )

    def remember(self, ids: Sequence[int]) -> None:
        """Keep the ids that an answer sent, for `sent_before`; only of the last 64 answers."""
        with self._lock:
            self._sent.append(np.asarray(ids, np.int32))

    def sent_before(self, ids: Sequence[int]) -> int:
        """Return how many leading `ids` a remembered answer sent, too: they may be in a cache."""
        wanted, most = np.asarray(ids, np.int32), 0
        # The lock for the copy alone: prompts may be long, and other answers need it.
        with self._lock:
            earlier = list(self._sent)
        for one in earlier:
            length = min(len(one), len(wanted))
            differ = one[:length] != wanted[:length]
            most = max(most, int(differ.argmax()) if differ.any() else length)
        return most

    def forget(self) -> None:
        """Set the sums of `savings` to 0; limits, remembered ids and the day's total stay."""
        with self._lock:
            self.sums = CostReport(answers=0)


VERDICT = 32
"""How many output tokens a verdict on a passage is expected to have."""


class CloudTokens:
    """Counts the tokens of an answer in the cloud's vocabulary, or estimates them.

    Where cloud and edge have one vocabulary (`shared`) the counts are exact. Else the cloud's
    tokenizer counts, if known. If not, the number of the edge's ids is multiplied by the billed
    tokens per id in the last usage report (1 at first).
    """

    def __init__(self, prompt: Sequence[int], edge: Tokenizer, cloud: CloudModel | None) -> None:
        self.start, self._edge, self._prompt = len(prompt), edge, prompt
        reads = cloud is not None and cloud.reads_passages
        self.shared = self.exact = cloud is not None and cloud.boundaries is None and not reads
        self._own = None if cloud is None or self.shared else cloud.own_tokenizer
        self._ratio, self._measured = 1.0, False
        said = question((), "", ()) if reads else ()
        self.asks = sum(len(edge.encode(one.content)) for one in said)  # ids beside the text

    def question(self, position: int) -> int:
        """Return the tokens that instructions to judge text add to a request on `position` ids."""
        return round(self.asks * self._ratio) if position > self.start else 0

    @cached_property
    def prompt(self) -> int:
        """Number of cloud tokens in the prompt, counted at first use; `measured` may correct it."""
        return self._count(self._prompt)

    def written(self, ids: Sequence[int]) -> int:
        """Return how many cloud tokens the answer in `ids` has; `ids` are prompt and answer."""
        return self._count(ids[self.start :])

    def measured(self, tokens: int, written: int, position: int) -> None:
        """Correct the counts by a request's usage report, unless they are exact (`shared`).

        The request was for what follows the first `position` ids (of prompt and answer). These are
        `tokens` prompt tokens by the report, about `written` of them the answer's.
        """
        if not self.shared:
            asks = self.asks if position > self.start else 0
            self._ratio = tokens / max(1, position + asks)
            if self._own is None and not self._measured:
                # Until now the cloud's tokens were taken for as many as the edge's.
                written = round(written * self._ratio)
            self._measured = True
            self.prompt = max(0, tokens - written - self.question(position))
            self.exact = self._own is not None

    def _count(self, ids: Sequence[int]) -> int:
        if self._own is None:
            return round(len(ids) * self._ratio)
        return len(self._own.encode(bytes_of(self._edge, ids).decode("utf-8", "replace")))


class _Call(NamedTuple):
    """A request to the cloud after `position` ids, `written` tokens of which are the answer's.

    It has `tokens` prompt tokens, takes up to `requests` HTTP requests for `each` tokens each, and
    is probably billed `likely`. `before` of the ids were sent before.
    """

    position: int
    written: int
    tokens: int
    requests: int
    each: int
    likely: BilledTokens
    sent: Outgoing
    future: Future[Completion]
    before: int = 0

    def dearest(self, left: int = UNLIMITED) -> BilledTokens:
        """Return the most that the call may be billed if only `left` HTTP requests were sent."""
        return sum(map(self.request, range(min(self.requests, left))), NOTHING)

    def request(self, number: int) -> BilledTokens:
        """Return the most that HTTP request `number` is billed."""
        # It sends again what earlier ones wrote.
        more = self.each * number
        return BilledTokens(input=self.tokens + more, output=self.each, estimated=True)

    @property
    def completion(self) -> Completion | None:
        """The completion; an unusable one without its ids; None if the request failed."""
        error = self.future.exception()
        return self.future.result() if error is None else getattr(error, "meter", None)

    @property
    def declined(self) -> bool:
        """Whether the engine declined at no cost."""
        error = self.future.exception()
        # What a busy or broken one bills is unknown.
        declined = isinstance(error, CloudError) and error.declined
        return declined and not isinstance(error, CloudUnavailable) and self.sent.requests == 1


class AnswerCosts:
    """The costs of one answer. Not thread-safe. `limited`: whether any of `Limits` is set."""

    def __init__(
        self,
        billing: Billing,
        tokens: CloudTokens,
        requests: Callable[[int], tuple[int, int]],
        *,
        whole: bool,
        cloud_alone: bool = False,
    ) -> None:
        """`requests` is `CloudModel.requests`; `tokens` counts in the cloud's vocabulary.

        `whole`: no stop string or full context cuts a completion. `cloud_alone`: no `Limits.alone`.
        """
        self._billing, self._price, self._limits = billing, billing.price, billing.limits
        if cloud_alone:
            self.without_edge()
        self.limited = self._limits != Limits(alone=False)
        self._tokens, self._requests = tokens, requests
        self._whole = whole and tokens.shared
        # An answer counts for the day on which it began.
        self._day, self._booked = today(), Decimal(0)
        self._over = NOTHING
        self._open: list[_Call] = []
        self._first: _Call | None = None
        self._prefix = 0  # tokens of the prompt that the first consult found cached
        self._last = self._cached = 0  # prompt tokens of the last consult, and those cached then
        self._missed = False
        self._sent: tuple[list[int], int] = [], 0  # by the last consult, and what it asked for

    def without_edge(self) -> None:
        """Lift `Limits.alone`: the edge model is lost, and the cloud writes all the rest."""
        self._limits = self._limits._replace(alone=False)

    def admits(self, ids: Sequence[int], n: int, verify: int = 0) -> int:
        """Return how many HTTP requests a consult may send; 0 if a limit forbids it.

        The consult is for `n` tokens after `ids`, or for verdicts on the last `verify` ids. It may
        need several requests, or repeat one after a broken connection. If it is allowed, and
        neither `Limits.answer` nor `Limits.day` is set, the number is `UNLIMITED`. With
        `Limits.day` the most that the requests may cost is added to the day's total now.
        """
        self._settle()
        spent = self._price.of(self._billed())
        call = self._call(ids, n, Outgoing(), Future())
        # A token will be written here by either model; if none is cut off, all `n` of a completion.
        least = n if self._whole and n else 1
        # What is read in passages takes the place of what the cloud alone would write.
        reads = self._tokens.asks > 0
        alone = self._alone(call.written if reads else call.written - verify + least)
        limits = self._limits
        # A whole answer by a reader is what the cloud alone would cost, as was asked for.
        if limits.alone and not (reads and n) and spent + self._price.of(call.likely) > alone:
            return 0
        if limits.answer is None and limits.day is None:
            return UNLIMITED
        # A broken connection repeats a request, and both are billed: if the limit has room.
        cost, requests = self._price.of(call.dearest()), self._requests(n)[0]
        fitting = (count for count in (2, 1) if self._fits(spent + count * cost))
        return requests * next(fitting, 0)

    def sent(self, ids: Sequence[int], n: int, sent: Outgoing, future: Future[Completion]) -> None:
        """Record that a consult that `admits` allowed is on its way, for `n` tokens after `ids`.

        What it cost follows from `sent`, which counts what leaves, and `future`, its completion.
        """
        before = self._reached(ids) or self._billing.sent_before(ids)
        call = self._call(ids, n, sent, future)._replace(before=min(before, len(ids)))
        self._sent = [*ids], n
        self._open.append(call)
        self._first = self._first or call

    def report(self, ids: Sequence[int]) -> CostReport:
        """Return the cost of the answer so far; `ids` are prompt and answer.

        A request in flight counts with the most that it may cost.
        """
        self._settle()
        billed = self._billed() + BilledTokens(estimated=not self._tokens.exact)
        return CostReport(billed, self._alone(self._tokens.written(ids)))

    def cost(self, ids: Sequence[int]) -> AnswerCost:
        """Return `report(ids)` as an `AnswerCost`, the form in events and replies."""
        return self.report(ids).shown(self._price)

    def close(self, ids: Sequence[int]) -> None:
        """End the answer: add its costs to `Billing` and to the day's total, if one is kept.

        `ids` are prompt and answer. In that total the costs replace what `admits` added.
        """
        report = self.report(ids)
        self._billing.add(report)
        if reached := self._reached(ids):
            self._billing.remember(ids[:reached])
        left = self._price.of(report.billed) - self._booked
        if left and self._billing.daily is not None:
            self._billing.daily.add(self._day, self._price.currency, left)

    def _fits(self, most: Decimal) -> bool:
        """Whether the answer may cost `most`; if so, that much is booked for the day."""
        limits, daily = self._limits, self._billing.daily
        if limits.answer is not None and most > limits.answer:
            return False
        if limits.day is None:
            return True
        more, currency = most - self._booked, self._price.currency
        if daily is None or not daily.add(self._day, currency, more, limits.day):
            return False
        self._booked = most
        return True

    def _reached(self, ids: Sequence[int]) -> int:
        """Return how many leading `ids` this answer's last request has sent or asked for."""
        sent, asked = self._sent
        held = common_prefix(sent, ids)
        return held + asked if held == len(sent) else held

    def _alone(self, written: int) -> Decimal:
        prompt = self._tokens.prompt
        cached = min(self._prefix, prompt)
        return self._price.of(BilledTokens(input=prompt - cached, cached=cached, output=written))

    def _call(self, ids: Sequence[int], n: int, sent: Outgoing, reply: Future[Completion]) -> _Call:
        requests, asked = self._requests(n)
        if n and self._tokens.asks:
            ids = ids[: self._tokens.start]  # a reader writes a whole answer behind the prompt
        written = self._tokens.written(ids)
        tokens = self._tokens.prompt + written + self._tokens.question(len(ids))
        least = self._price.cached_from
        # What was found cached is expected again; after a miss nothing else is known.
        cached = self._cached
        if least is not None and not self._missed:
            last = min(self._last, self._reached(ids)) if self._tokens.shared else self._last
            cached = max(cached, last - least)
        cached = min(tokens, cached)
        output = VERDICT if self._tokens.asks and not n else asked
        likely = BilledTokens(input=tokens - cached, cached=cached, output=output)
        return _Call(len(ids), written, tokens, requests, asked, likely, sent, reply)

    def _billed(self) -> BilledTokens:
        # A consult that was given up before it left cost nothing.
        open = (one for one in self._open if not one.future.cancelled() or one.sent.requests)
        return sum((one.dearest() + self._repeated(one) for one in open), self._over)

    def _repeated(self, call: _Call) -> BilledTokens:
        """Return the most that repeated HTTP requests are billed, which no usage report counts."""
        # With a shared vocabulary a consult is one request.
        repeats = call.sent.requests - 1 if self._tokens.shared else call.sent.repeats
        return sum([call.request(call.requests - 1)] * repeats, NOTHING)

    def _settle(self) -> None:
        """Count the requests that are over."""
        calls, self._open = self._open, []
        for call in calls:
            # A cancelled one stays open: nobody knows what it is billed.
            if call.future.cancelled() or not call.future.done():
                self._open.append(call)
                continue
            # A reader is not sent a passage of blanks.
            asked = call.sent.requests or not self._tokens.asks
            completion = call.completion if asked else None
            if completion is not None:
                billed = self._metered(completion, call)
                self._learn(billed, call)
                self._over += billed + self._repeated(call)
            elif call.sent.requests and not call.declined:
                dearest = call.dearest(call.sent.requests - call.sent.repeats)
                self._over += dearest + self._repeated(call)
            elif call is self._first:
                # The cloud has cached nothing of it.
                self._first = None

    def _metered(self, completion: Completion, call: _Call) -> BilledTokens:
        """Return the tokens billed by the usage report; without one, as counted here, uncached."""
        prompt, cached = completion.prompt, completion.cached
        if prompt is None and cached is not None and completion.computed is not None:
            prompt = cached + completion.computed
        matters = self._price.cached != self._price.input
        # A count of zero is not one: something was sent.
        known = bool(prompt) and not (matters and cached is None)
        if not prompt:
            prompt = call.tokens * self._requests_of(call, call.tokens)
        # What is counted exactly here is billed at least, whatever the meter says.
        floor = call.tokens if self._tokens.shared else call.sent.ids
        known, prompt = known and prompt >= floor, max(prompt, floor)
        requests = self._requests_of(call, prompt)
        # No more is cached than was sent before, or by the consult's own requests but the last.
        most = -(-prompt * call.before // (requests * max(1, call.position)))
        most += prompt * (max(requests, call.sent.requests) - 1) // requests
        known, cached = known and (cached or 0) <= most, min(cached or 0, prompt, most)
        output = completion.billed
        if not output and completion.ids:
            known, output = False, len(completion.ids)
        return BilledTokens(
            input=prompt - cached, cached=cached, output=output, estimated=not known
        )

    def _learn(self, billed: BilledTokens, call: _Call) -> None:
        """Predict from this request how much the next one will find cached."""
        requests = self._requests_of(call, billed.input + billed.cached)
        tokens, cached = (billed.input + billed.cached) // requests, billed.cached // requests
        self._tokens.measured(tokens, call.written, call.position)
        if call is self._first:
            # Further requests of a consult find what its first one sent.
            self._prefix = max(0, billed.cached - (requests - 1) * tokens)
        self._missed |= (missed := cached < call.likely.cached)
        self._last, self._cached = tokens, 0 if missed else cached

    def _requests_of(self, call: _Call, prompts: int) -> int:
        """Return the HTTP requests that a usage report of `prompts` prompt tokens counts."""
        if self._tokens.shared:
            return 1
        counted = call.sent.requests - call.sent.repeats
        return counted or max(1, round(prompts / max(1, call.tokens)))
