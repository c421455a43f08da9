"""What an answer's consults cost, what the cloud alone would have, and whether another may go.

All of it follows from what the provider's meter said of the consults that are over, and from the
dearest that the others may come to.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from decimal import Decimal
from typing import NamedTuple, Protocol

import msgspec

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import CloudError
from edgewise.events import AnswerCost
from edgewise.loop.price import NOTHING, Bill, Price


class Limits(NamedTuple):
    """What consults may cost: not more than the cloud alone, `answer` an answer, `day` a day."""

    alone: bool = True
    answer: Decimal | None = None
    day: Decimal | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return self.alone or self.answer is not None or self.day is not None


class Reckoning(msgspec.Struct, frozen=True):
    """What was billed, and what the cloud alone would have cost."""

    bill: Bill
    alone: Decimal

    def __add__(self, other: "Reckoning") -> "Reckoning":
        return Reckoning(self.bill + other.bill, self.alone + other.alone)

    def cost(self, price: Price) -> AnswerCost:
        """As it is shown."""
        paid = price.of(self.bill)
        return AnswerCost(
            paid=float(paid),
            alone=float(self.alone),
            saved=float(self.alone - paid),
            currency=price.currency,
            input_tokens=self.bill.input,
            cached_tokens=self.bill.cached,
            output_tokens=self.bill.output,
            estimated=self.bill.estimated,
        )


class Purse(Protocol):
    """What a day's limit is held by."""

    def book(self, cost: Decimal) -> bool:
        """Take all that the answer may cost from the day; False where it is not there."""
        ...


class CloudTokens:
    """How many tokens an answer is to the cloud, which may have another vocabulary.

    Then by its own tokenizer where that is known, else as its meter's counts are to the edge's.
    """

    def __init__(self, prompt: Sequence[int], edge: Tokenizer, cloud: CloudModel | None) -> None:
        self._start, self._edge = len(prompt), edge
        self.shared = cloud is not None and cloud.seams is None
        self._own = None if cloud is None or self.shared else cloud.own_tokenizer
        self._ratio = 1.0
        self._prompt, self._counted = prompt, None if self._own else len(prompt)
        self.exact = self.shared

    @property
    def prompt(self) -> int:
        """The prompt's."""
        if self._counted is None:
            # Not before it is asked for: a long one takes a while.
            self._counted = self._count(self._prompt)
        return self._counted

    def written(self, ids: Sequence[int]) -> int:
        """The answer in `ids`, which begin with the prompt."""
        return self._count(ids[self._start :])

    def measured(self, tokens: int, written: int, position: int) -> None:
        """The meter counted so many for a prompt with `written` tokens of the answer in it.

        It was sent behind `position` ids of the edge's.
        """
        if self.shared:
            return
        self._ratio = tokens / max(1, position)
        self._counted = max(0, tokens - written)
        self.exact = self._own is not None

    def _count(self, ids: Sequence[int]) -> int:
        if self._own is None:
            return round(len(ids) * self._ratio)
        return len(self._own.encode(bytes_of(self._edge, ids).decode("utf-8", "replace")))


class _Sent(NamedTuple):
    """A consult that was sent: `tokens` of its prompt, `written` of the answer among them.

    So many were `expected` to be cached; `dearest` is the most it can be billed, unless requests of
    it are repeated, which cost `again` each at most.
    """

    position: int
    tokens: int
    written: int
    expected: int
    dearest: Bill
    again: Bill
    sent: Sent
    future: "Future[Completion]"
    valid: Callable[[Completion], bool]

    def repeated(self, *, shared: bool) -> Bill:
        """What attempts come to at the dearest that no completion's meter counts."""
        sent = self.sent
        # Of a shared vocabulary a consult is one request; what else was sent is a repeat.
        repeats = max(0, sent.requests - 1) if shared else sent.repeats
        return sum([self.again] * repeats, NOTHING)


class CostMeter:
    """Of one answer; owned by its thread."""

    def __init__(
        self,
        price: Price,
        limits: Limits,
        tokens: CloudTokens,
        requests: Callable[[int], tuple[int, int]],
        purse: Purse,
        *,
        whole: bool,
    ) -> None:
        """`requests` is the cloud's (`CloudModel.requests`); `whole` if completions stand whole."""
        self.limits = limits
        self._price, self._tokens, self._requests = price, tokens, requests
        self._purse, self._whole = purse, whole and tokens.shared
        self._over = NOTHING
        self._open: list[_Sent] = []
        self._attempts: int | None = None
        self._first: _Sent | None = None
        self._prefix = 0  # tokens of the prompt that the first consult found cached
        self._last = self._cached = 0  # prompt tokens of the last consult, and those cached then
        self._missed = False

    def admits(self, ids: Sequence[int], n: int) -> bool:
        """Whether a consult for `n` behind `ids` may be sent, by every limit."""
        self._settle()
        spent = self._price.of(self._billed())
        likely, dearest = self._expected(ids, n)
        # A token will stand here, whoever writes it; what is kept of a longer completion, too.
        alone = self._alone(self._tokens.written(ids) + (n if self._whole else 1))
        if self.limits.alone and spent + self._price.of(likely) > alone:
            return False
        self._attempts = None
        if self.limits.answer is None and self.limits.day is None:
            return True
        # A broken connection repeats a request, and both may be billed: where the limit has room.
        cost, requests = self._price.of(dearest), self._requests(n)[0]
        fitting = (count for count in (2, 1) if self._fits(spent + count * cost))
        self._attempts = requests * next(fitting, 0)
        return self._attempts > 0

    def allow(self, sent: Sent) -> None:
        """Hold a consult, just admitted, to as many requests as its limits have room for."""
        sent.most = self._attempts

    def _fits(self, most: Decimal) -> bool:
        limits = self.limits
        if limits.answer is not None and most > limits.answer:
            return False
        return limits.day is None or self._purse.book(most)

    def sent(
        self,
        ids: Sequence[int],
        n: int,
        sent: Sent,
        future: "Future[Completion]",
        valid: Callable[[Completion], bool],
    ) -> None:
        """A consult went; `valid` says whether a completion answers it."""
        likely, dearest = self._expected(ids, n)
        written = self._tokens.written(ids)
        tokens = self._tokens.prompt + written
        requests, asked = self._requests(n)
        again = Bill(input=tokens + asked * (requests - 1), output=asked, estimated=True)
        one = _Sent(len(ids), tokens, written, likely.cached, dearest, again, sent, future, valid)
        self._open.append(one)
        self._first = self._first or one

    def reckoning(self, ids: Sequence[int]) -> Reckoning:
        """Of the answer in `ids`, prompt included; what still flies counts at the dearest."""
        self._settle()
        bill = self._billed()
        if not self._tokens.exact:
            bill += Bill(estimated=True)
        return Reckoning(bill, self._alone(self._tokens.written(ids)))

    def _alone(self, written: int) -> Decimal:
        cached = min(self._prefix, self._tokens.prompt)
        return self._price.of(
            Bill(input=self._tokens.prompt - cached, cached=cached, output=written)
        )

    def _expected(self, ids: Sequence[int], n: int) -> tuple[Bill, Bill]:
        """What a consult will likely be billed, and the most that it can be."""
        requests, asked = self._requests(n)
        tokens = self._tokens.prompt + self._tokens.written(ids)
        cached = min(tokens, self._expected_cached())
        likely = Bill(input=tokens - cached, cached=cached, output=asked)
        # Each further request sends again what the ones before it wrote.
        again = asked * requests * (requests - 1) // 2
        dearest = Bill(input=requests * tokens + again, output=requests * asked, estimated=True)
        return likely, dearest

    def _expected_cached(self) -> int:
        """What was found cached is so again; behind a miss nothing is known."""
        least = self._price.cached_from
        if least is None or self._missed:
            return self._cached
        return max(self._cached, self._last - least)

    def _billed(self) -> Bill:
        bill = self._over
        for one in self._open:
            # One that was given up before it left cost nothing.
            if not one.future.cancelled() or one.sent.requests:
                bill += one.dearest + one.repeated(shared=self._tokens.shared)
        return bill

    def _settle(self) -> None:
        """Count what is over; what was cancelled may be billed for all that is known."""
        left: list[_Sent] = []
        for one in self._open:
            if one.future.cancelled() or not one.future.done():
                left.append(one)
                continue
            self._over += self._outcome(one)
        self._open = left

    def _outcome(self, one: _Sent) -> Bill:
        error = one.future.exception()
        repeated = one.repeated(shared=self._tokens.shared)
        if error is None:
            completion = one.future.result()
            if not one.valid(completion):
                return one.dearest + repeated
            bill = self._metered(completion, one)
            self._learn(bill, one)
            return bill + repeated
        requests = one.sent.requests
        declined = isinstance(error, CloudError) and error.declined and requests == 1
        if requests and not declined:
            return one.dearest + repeated
        if one is self._first:
            # The cloud knows no more than before.
            self._first = None
        return NOTHING

    def _metered(self, completion: Completion, one: _Sent) -> Bill:
        """A completion's bill; what the meter leaves out was not cached, and is as we count it."""
        prompt, cached = completion.prompt, completion.cached
        if prompt is None and cached is not None and completion.computed is not None:
            prompt = cached + completion.computed
        matters = self._price.cached != self._price.input
        # A meter of nothing is none: something was sent.
        known = bool(prompt) and not (matters and cached is None)
        if not prompt:
            prompt = one.tokens * self._requests_of(one, one.tokens)
        # What is counted exactly here is billed at least, whatever the meter says.
        floor = one.tokens if self._tokens.shared else one.sent.ids
        known, prompt = known and prompt >= floor, max(prompt, floor)
        cached, output = min(cached or 0, prompt), completion.billed
        if not output and completion.ids:
            known, output = False, len(completion.ids)
        return Bill(input=prompt - cached, cached=cached, output=output, estimated=not known)

    def _learn(self, bill: Bill, one: _Sent) -> None:
        """What the next consult will find, from what this one found."""
        requests = self._requests_of(one, bill.input + bill.cached)
        tokens, cached = (bill.input + bill.cached) // requests, bill.cached // requests
        self._tokens.measured(tokens, one.written, one.position)
        if one is self._first:
            # Further requests of a consult find what its first one sent.
            self._prefix = max(0, bill.cached - (requests - 1) * tokens)
        missed = cached < one.expected
        self._missed = self._missed or missed
        self._last, self._cached = tokens, 0 if missed else cached

    def _requests_of(self, one: _Sent, prompts: int) -> int:
        """Requests that it took; one by ids of a shared vocabulary, repeated or not.

        To a model in this process nothing is sent: as many as its `prompts` have tokens for.
        """
        if self._tokens.shared:
            return 1
        return one.sent.requests or max(1, round(prompts / max(1, one.tokens)))
