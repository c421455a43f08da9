"""Engines and gateways that are strange: whoever asked is answered, at once."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from edgewise.cloud.gateway import GatewayCloud
from edgewise.engines import vocabulary_check
from edgewise.engines.http import bounded
from edgewise.errors import CloudError, OtherVocabulary
from edgewise.events import Consult, Event
from edgewise.gateway.local import LocalEngine
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine
from tests.gateway.plain_client import PlainClient
from tests.gateway.running import device, gateway
from tests.server_process import free_port

PROMPT, TEXT = "sky: ", "blue sky"


@pytest.mark.parametrize("name", ["\xff\xfe", "\x1b[31mred", "x" * 5000])
def test_an_engines_request_id_can_be_shown(name: str) -> None:
    """A header may hold anything; a frame, a log and a terminal may not."""
    shown = bounded(name) or ""
    assert 0 < len(shown) <= 64
    assert shown.isascii()
    assert shown.isprintable()


def test_the_bundled_engine_rejects_what_it_cannot_mean(caplog: pytest.LogCaptureFixture) -> None:
    with gateway([LocalEngine()]) as running, PlainClient(running.url) as client:
        size = running.gateway.fleet.size
        assert size is not None
        client.send([1, 1, running.gateway.fleet.tokenizer])
        assert client.receive()[0] == 16
        # A push that means nothing to it is nobody's alarm.
        client.prefetch(0, [size + 1] * 20)
        for ids in ([], [size], [1, size], [(1 << 31) - 1], [(1 << 32) - 1]):
            assert client.ask(1, 0, ids)[:3] == [19, 1, "rejected"]
        for ids in ([1, size], [size, 1], [1] * 5000):
            assert client.ask(1, 0, ids, 0, 60_000, 0, None, 1)[:3] == [19, 1, "rejected"]
        assert client.ask(2, 0, [1, 2])[0] == 17
    ours = [record for record in caplog.records if record.name.startswith("edgewise")]
    assert not [record for record in ours if record.levelname == "ERROR"]


def streamed(
    cloud: GatewayCloud, on_error: Any, meanwhile: Callable[[], None]
) -> tuple[list[str], CloudError | None]:
    """An answer, `meanwhile` done after its third consult: how its consults ended, what it raised.

    No token is written by what was put in the place of the engine.
    """
    edge = ScriptedEdge(replying(TEXT, prompt=PROMPT))
    policy = Policy(threshold=0.5, speculate=0, on_cloud_error=on_error, deadline=20.0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    events, raised = list[Event](), None
    try:
        for event in decoder.stream(list(PROMPT.encode()), max_tokens=len(TEXT)):
            events.append(event)
            if isinstance(event, Consult) and event.index == 2:
                meanwhile()
    except CloudError as error:
        raised = error
    assert (raised is not None) == (on_error == "raise")
    if raised is None:
        assert collect(iter(events)).text == "aaa" + TEXT[3:]
    return [event.outcome for event in events if isinstance(event, Consult)], raised


@pytest.mark.parametrize("on_error", ["edge", "raise"])
def test_a_gateway_that_comes_back_with_another_vocabulary_in_mid_answer(on_error: Any) -> None:
    port, other = free_port(), PlainEngine()
    other.mark = 1
    with ExitStack() as first, ExitStack() as then:
        running = first.enter_context(gateway([PlainEngine()], port=port))

        def replace() -> None:
            first.close()
            then.enter_context(gateway([other], port=port))

        with device(running) as cloud:
            outcomes, raised = streamed(cloud, on_error, replace)
    assert outcomes[:3] == ["answered"] * 3
    assert other.asked == 0
    if on_error == "raise":
        assert type(raised) is OtherVocabulary
    else:
        assert outcomes[3] == "rejected"


@pytest.mark.parametrize("on_error", ["edge", "raise"])
def test_an_engine_replaced_behind_its_gateway_in_mid_answer(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, on_error: Any
) -> None:
    """Not seen down: not one token of the other model is written, and `/ready` says no."""
    monkeypatch.setattr(vocabulary_check, "FRESH_SECONDS", -1.0)
    engine.script = lambda ids: 97

    def replace() -> None:
        engine.mark = 1
        engine.stop()
        engine.start()

    with gateway([engine.url]) as running, device(running) as cloud:
        streamed(cloud, on_error, replace)
        assert running.gateway.fleet.up == 0
