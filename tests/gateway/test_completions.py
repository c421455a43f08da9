"""How a consult ends at the gateway: what the device hears, what the log and the metrics say."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from edgewise.cloud.base import ConsultRequest
from edgewise.completion import Completion
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
)
from edgewise.prompts import Prompt
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.conftest import Told
from tests.gateway.doubles import PlainEngine, letters
from tests.gateway.plain_client import check, opened
from tests.gateway.processes import until
from tests.gateway.running import device, gateway


@pytest.mark.parametrize("bug", [RuntimeError("a bug"), asyncio.CancelledError("a bug")])
def test_a_bug_is_logged_whole_and_answered_at_once(bug: BaseException, told: Told) -> None:
    """The connection outlives it, one in a prefill too."""

    def broken(ids: Sequence[int], n: int) -> Completion:
        raise bug

    engine = PlainEngine(act=broken)
    with gateway([engine]) as running, opened(running.url) as client:
        failed = client.ask(1, 0, [1])
        assert (failed[:3], "a bug" in failed[3]) == ([19, 1, "unavailable"], False)
        engine.act = letters
        assert client.ask(2, 0, [1], 2)[2] == [97, 97]
        counted = running.metrics()
    assert 'consults_total{outcome="unavailable"} 1.0' in counted
    assert "device left" not in counted
    (line,) = [line for line in told if line["log_level"] == "error"]
    assert type(bug).__name__ in line["exception"]
    assert "Traceback" in line["exception"]


def test_a_prefetch_that_meets_a_bug_is_logged_and_no_more(told: Told) -> None:
    def broken(ids: Sequence[int], n: int) -> Completion:
        raise RuntimeError("in a prefill")

    engine = PlainEngine(act=broken)
    with gateway([engine]) as running, opened(running.url) as client:
        client.prefetch(0, [1, 2, 3])
        until(lambda: 'prefetches_total{outcome="failed"}' in running.metrics())
        engine.act = letters
        assert client.ask(1, 3, [])[2] == [97]
    assert any("in a prefill" in line.get("exception", "") for line in told)


def test_a_device_that_left_is_no_failure_of_the_engine(engine: ScriptedEngine, told: Told) -> None:
    with gateway([engine.url]) as running:
        with opened(running.url) as client:
            engine.seconds = 0.3
            client.send([3, 1, 0, [1], check([1])])
            until(lambda: engine.running)
        until(lambda: not running.gateway.connections)
        counted = running.metrics()
    assert 'consults_total{outcome="cancelled"} 1.0' in counted
    assert not [line for line in told if line["log_level"] in ("error", "warning")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CloudUnavailable, "unavailable"),
        (CloudRefused, "refused"),
        (CloudRejected, "rejected"),
        (CloudTimeout, "timeout"),
        (CloudProtocolError, "protocol"),
    ],
)
def test_a_device_hears_the_kind_of_an_engines_failure_and_nothing_it_says(
    error: type[CloudError], reason: str, told: Told
) -> None:
    def act(ids: Sequence[int], n: int) -> Completion:
        raise error("a secret prompt", request_id="req-7")

    with gateway([PlainEngine(act=act)]) as running:
        with device(running) as cloud, pytest.raises(error) as raised:
            cloud.open(Prompt((1,))).ask(ConsultRequest([1], 1, 10)).result()
        counted = running.metrics()
    assert "secret" not in str(raised.value)
    assert raised.value.request_id == "req-7"
    assert "(request req-7)" in str(raised.value)
    assert f'consults_total{{outcome="{reason}"}} 1.0' in counted
    (line,) = [line for line in told if line["event"] == "consult failed"]
    assert (line["reason"], line["engine_request_id"]) == (reason, "req-7")
    assert "secret" not in json.dumps(line)
