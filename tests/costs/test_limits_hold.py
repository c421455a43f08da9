"""No limit is passed by a provider that repeats, is cut off, fails or lies in its meter.

A day's sum holds across processes, and a file that cannot hold it is said to. An invoice is what
a provider bills that charges every request which reached it, whatever it said.
"""

import logging
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.costs.daily import DailyTotal, today
from edgewise.costs.meter import Billing, Limits
from edgewise.costs.price import price_of
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing import ByteTokenizer, ScriptedCloud, ScriptedEdge, noise
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, Wire, reply_to
from tests.doubles.wrapped_cloud import NeverOpen
from tests.gateway.processes import until
from tests.loop.test_speculate import agreeing

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())
PRICE = price_of("2000,2000,8000")
DAY = "2026-01-02"
CROWDED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from edgewise.costs.daily import DailyTotal
files = [DailyTotal(Path(sys.argv[1])) for _ in range(2)]
def add(number):
    return files[number % 2].add("2026-01-02", "", Decimal("0.1"), Decimal("20"))
with ThreadPoolExecutor(6) as threads:
    print(sum(threads.map(add, range(150))))
"""
CUT = Wire([b""])
"""The engine reads the request, computes, and the connection breaks."""

Does = Callable[[int], Misdeed | None]


def bill(prompt: int, written: int) -> Decimal:
    return Decimal(2 * prompt + 8 * written) / 1000


class Provider:
    """An engine, a cloud at it, and its bill: every request for a token that reached it."""

    def __init__(self, engine: ScriptedEngine, cloud: EngineCloud) -> None:
        self.invoice, self.engine, self.cloud = Decimal(0), engine, cloud
        engine.script = self._billed

    def _billed(self, ids: Sequence[int]) -> int:
        self.invoice += bill(len(ids), 1)
        return reply_to(ids)


@pytest.fixture(params=["llama-server", "vllm"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    with (
        closing(ScriptedEngine(dialect=request.param)) as engine,
        closing(open_engine(engine.url, engine=engine.speaks)) as cloud,
    ):
        cloud.check_vocabulary(ByteTokenizer())
        yield Provider(engine, cloud)


MISDEEDS: dict[str, Does] = {
    "nothing": lambda number: None,
    "every other is cut": lambda number: CUT if number % 2 else None,
    "all are cut": lambda number: CUT,
    "errors": lambda number: "error",
    "too busy": lambda number: "busy",
    "busy for a moment": lambda number: Edited(status=429, headers={"Retry-After": "0"}),
    "garbage": lambda number: "garbage",
}


def decoder(
    cloud: CloudModel,
    limits: Limits,
    spent: DailyTotal | None = None,
    breaker: Breaker | None = None,
    **policy: Any,
) -> Decoder:
    return Decoder(
        ScriptedEdge(noise()),
        router=Constant(1.0),
        policy=Policy(deadline=30.0, **policy),
        cloud=cloud,
        # Failures do not end the asking: the limit alone does.
        breaker=breaker or NeverOpen(),
        billing=Billing(PRICE, limits=limits, daily=spent),
    )


@pytest.mark.parametrize("limit", ["0.03", "0.14"])
@pytest.mark.parametrize("name", MISDEEDS)
@pytest.mark.parametrize("verify", ["off", "exact"])
def test_an_answers_limit_holds(provider: Provider, name: str, limit: str, verify: str) -> None:
    """Engines that are billed for each token that they verify are asked for tokens instead."""
    provider.engine.fault, most = MISDEEDS[name], Decimal(limit)
    answering = decoder(provider.cloud, Limits(False, most), verify=verify)
    usage = answering.generate(IDS, max_tokens=12).usage
    assert 0 < provider.invoice <= Decimal(str(usage.cost.paid)) <= most


@pytest.mark.parametrize("name", MISDEEDS)
def test_the_limit_of_a_day_holds(provider: Provider, name: str, tmp_path: Path) -> None:
    provider.engine.fault, most = MISDEEDS[name], Decimal("0.2")
    spent = DailyTotal(tmp_path / "spent.db")
    for _ in range(4):
        decoder(provider.cloud, Limits(False, None, most), spent).generate(IDS, max_tokens=4)
    assert 0 < provider.invoice <= spent_on(spent, today()) <= most


@pytest.mark.parametrize("limit", ["0.1", "0.3"])
def test_a_meter_that_counts_nothing_is_not_believed(limit: str) -> None:
    most = Decimal(limit)
    nothing = {"prompt": 0, "cached": 0, "computed": 0, "written": 0}

    def lying(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        counted: Flying = Future()
        counted.set_result(replace(send().result(), **nothing))
        return counted

    cloud = ScriptedCloud(noise(1))
    answer = decoder(WrappedCloud(cloud, lying), Limits(False, most)).generate(IDS, max_tokens=12)
    invoice = sum(bill(len(ids), n) for ids, n in cloud.asks)
    assert 0 < invoice <= Decimal(str(answer.usage.cost.paid)) <= most


@pytest.mark.parametrize("limit", ["0.1", "0.3"])
@pytest.mark.parametrize("verify", ["off", "exact"])
def test_a_meter_that_calls_all_cached_is_not_believed(verify: str, limit: str) -> None:
    """The provider bills what it had not read before, at most: drafts that were dropped, too."""
    most, told = Decimal(limit), price_of("2000,0,8000")

    def lying(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        counted: Flying = Future()
        counted.set_result(replace(send().result(), prompt=len(ids), cached=len(ids)))
        return counted

    script = agreeing(noise(), noise(1), 0.6 if verify == "exact" else 0.0)
    cloud, paid, invoice = ScriptedCloud(script, verifies=True), Decimal(0), Decimal(0)
    answering = decoder(WrappedCloud(cloud, lying), Limits(False, most), verify=verify)
    answering.billing = Billing(told, limits=Limits(False, most))
    for number in range(3):
        answer = answering.generate([number, *IDS], max_tokens=12)
        paid += Decimal(str(answer.usage.cost.paid))
    held: list[int] = []
    for ids, n in cloud.asks:
        new = len(ids) - common_prefix(held, ids)
        invoice, held = invoice + bill(new, n), [*ids, *[int(script(ids).argmax())] * n]
    assert 0 < invoice <= paid <= 3 * most


def test_an_answer_that_is_left_pays_for_what_had_left(provider: Provider) -> None:
    """The client goes while a consult flies: the provider computes it all the same."""
    provider.engine.fault = lambda number: "hang"
    answering = decoder(provider.cloud, Limits(False, Decimal(1)), speculate=2)
    with answering.stream(IDS, pending=True) as events:
        next(events)
        while not provider.invoice:
            time.sleep(0.01)
    assert provider.invoice <= Decimal(str(answering.billing.savings().paid))


def test_a_probe_that_outlives_its_answer_is_billed(provider: Provider, tmp_path: Path) -> None:
    """It is told to come again once the bill is made."""
    over, busy = threading.Event(), Edited(status=429, headers={"Retry-After": "0"})
    provider.engine.fault = lambda number: busy if over.wait(60) else None
    spent, breaker = DailyTotal(tmp_path / "spent.db"), Breaker(clock=count(0, 60).__next__)
    breaker.failed(silent=True)
    answering = decoder(provider.cloud, Limits(False, None, Decimal(9)), spent, breaker)
    assert answering.generate(IDS, max_tokens=1).tokens[0].reason == "circuit_open"
    over.set()
    until(lambda: breaker.allow() == "probe")
    assert 0 < provider.invoice <= spent_on(spent, today())


def test_a_pause_books_nothing_for_the_day(tmp_path: Path) -> None:
    booked: list[Decimal] = []

    class Counting(DailyTotal):
        def add(self, day: str, currency: str, cost: Decimal, most: Decimal | None = None) -> bool:
            booked.append(cost)
            return super().add(day, currency, cost, most)

    cloud = ScriptedCloud(noise(), fault=lambda ask: CloudUnavailable("gone."))
    spent, breaker = Counting(tmp_path / "spent.db"), Breaker(clock=lambda: 0.0)
    for _ in range(3):
        breaker.failed()
    answering = decoder(cloud, Limits(False, None, Decimal(9)), spent, breaker)
    answer = answering.generate(IDS, max_tokens=8)
    assert {token.reason for token in answer.tokens} == {"circuit_open"}
    assert booked == []


@pytest.fixture
def file(tmp_path: Path) -> DailyTotal:
    return DailyTotal(tmp_path / "state" / "spent.db")


def test_less_than_nothing_spent_is_no_credit(file: DailyTotal) -> None:
    assert file.add(today(), "", Decimal(1))
    with closing(sqlite3.connect(file.path)) as raw, raw:
        raw.execute("UPDATE spent SET amount = '-100'")
    assert not file.add(today(), "", Decimal(2), Decimal(1))
    # Nor where somebody deleted the file in the middle of an answer.
    assert file.add(today(), "", Decimal(-5))
    assert spent_on(file, today()) == 0


def spent_on(file: DailyTotal, day: str, currency: str = "") -> Decimal:
    query = "SELECT amount FROM spent WHERE day = ? AND currency = ?"
    with closing(sqlite3.connect(file.path)) as raw:
        return Decimal((raw.execute(query, (day, currency)).fetchone() or ["0"])[0])


def test_sums_are_exact_and_apart(file: DailyTotal) -> None:
    for _ in range(10):
        assert file.add(DAY, "", Decimal("0.1"))
    assert file.add(DAY, "EUR", Decimal(5))
    assert file.add(today(), "", Decimal(7))
    assert spent_on(file, DAY) == 1
    assert spent_on(file, DAY, "EUR") == 5
    assert spent_on(file, "2026-01-03") == 0
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.path.parent.stat().st_mode & 0o077 == 0


def test_never_above_the_most(file: DailyTotal) -> None:
    most = Decimal("0.3")
    assert file.add(DAY, "", Decimal("0.2"), most)
    assert not file.add(DAY, "", Decimal("0.100001"), most)
    assert file.add(DAY, "", Decimal("-0.1"), most)
    assert file.add(DAY, "", Decimal("0.2"), most)
    assert not file.add(DAY, "", Decimal("0.000001"), most)
    # What was spent without a limit counts, and what is given back always may be.
    assert file.add(DAY, "", Decimal(1))
    assert file.add(DAY, "", Decimal("-0.1"), most)
    assert spent_on(file, DAY) == Decimal("1.2")


def test_processes_of_several_threads_share_a_limit(tmp_path: Path) -> None:
    """By POSIX a thread that closes the file ends the locks of all others of its process."""
    path = tmp_path / "spent.db"
    command = [sys.executable, "-c", CROWDED, str(path)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in processes]
    assert [error for _, error in told] == [b"", b""]
    assert sum(int(added) for added, _ in told) == 200
    assert spent_on(DailyTotal(path), DAY) == 20


def test_a_file_that_is_deleted_begins_anew_for_all(file: DailyTotal) -> None:
    other = DailyTotal(file.path)
    assert file.add(DAY, "", Decimal(1))
    file.path.unlink()
    assert other.add(DAY, "", Decimal(2), Decimal(2))
    assert not file.add(DAY, "", Decimal(1), Decimal(2))
    assert spent_on(file, DAY) == 2


@pytest.mark.parametrize("broken", ["not a database", "a folder", "abc", "NaN"])
def test_an_unusable_file(file: DailyTotal, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    file.add(today(), "", Decimal(0))
    if broken in ("abc", "NaN"):
        with sqlite3.connect(file.path) as raw:
            raw.execute("UPDATE spent SET amount = ?", (broken,))
    else:
        file.path.unlink()
        file.path.mkdir() if broken == "a folder" else file.path.write_text(broken * 100)
    with pytest.raises(UsageError) as refused:
        file.require_usable()
    assert refused.value.setting == "max_cost_day"
    with caplog.at_level(logging.WARNING):
        assert not file.add(today(), "", Decimal(1), Decimal(5))
        assert not file.add(today(), "", Decimal(1))
    assert len(caplog.records) == 1
