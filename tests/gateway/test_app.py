"""What a gateway promises, over real sockets to a scripted engine."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edgewise.cloud.gateway import GatewayCloud
from edgewise.errors import CloudRefused, CloudRejected, CloudTimeout
from edgewise.events import Consult
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.uncertainty import MaxProb
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.plain_client import PlainClient, check
from tests.gateway.processes import until
from tests.gateway.running import Running, gateway

GREEDY = Sampling()


@pytest.fixture
def running(engine: ScriptedEngine) -> Iterator[Running]:
    with gateway([engine.url]) as made:
        yield made


@pytest.fixture
def cloud(running: Running) -> Iterator[GatewayCloud]:
    made = cloud_of(running)
    yield made
    made.close()


def cloud_of(running: Running, secret: str | None = None) -> GatewayCloud:
    cloud = GatewayCloud(running.url, key=secret)
    cloud.check(ByteTokenizer())
    return cloud


def test_consults_send_only_what_is_new(cloud: GatewayCloud) -> None:
    prompt = list(b"a prompt of some length")
    session = cloud.open(Prompt(tuple(prompt)))
    ids = list(prompt)
    for _ in range(5):
        completion = session.ask(ids, 1, GREEDY, 30).result()
        assert completion.ids == (reply_to(ids),)
        assert completion.top[0][0].id == completion.ids[0]
        ids += completion.ids
        session.prefetch(ids)
    again = session.ask([*prompt[:3], *b"xyz"], 2, GREEDY, 30).result()
    assert again.ids[0] == reply_to([*prompt[:3], *b"xyz"])
    session.close()


def test_the_next_answer_uses_the_link_of_the_last(running: Running, cloud: GatewayCloud) -> None:
    for text in (b"first", b"first, then more", b"another"):
        session = cloud.open(Prompt(tuple(text)))
        assert session.ask(list(text), 1, GREEDY, 30).result().ids == (reply_to(list(text)),)
        session.close()
        time.sleep(0.05)
    # What begins otherwise is another conversation.
    assert len(running.gateway.sessions) == 2


@pytest.mark.parametrize(
    "frame", [[99, 1], [3, 1, -1, [], 0], "text", {}, [99, "x" * 100_000]], ids=type
)
def test_a_device_that_breaks_the_protocol_is_told_and_left(running: Running, frame: Any) -> None:
    """Large frames too, which are taken apart in a thread."""
    with PlainClient(running.url) as client:
        client.open()
        client.send(frame)
        assert client.receive()[:3] == [19, None, "protocol"]
        assert client.code() == 1002


def test_a_prefix_that_is_not_held_must_be_sent_whole(running: Running) -> None:
    with PlainClient(running.url) as client:
        client.open()
        client.send([3, 1, 5, [1], 7])  # beyond the end
        assert client.receive() == [18, 1]
        client.send([3, 2, 0, [1, 2], 7])  # with a wrong check
        assert client.receive() == [18, 2]
        client.send([2, 3, [1], 7])
        assert client.receive() == [18, None]
        assert client.ask(3, 0, [1, 2])[:3] == [17, 3, [reply_to([1, 2])]]


def test_consults_of_a_session_do_not_overtake_each_other(
    running: Running, engine: ScriptedEngine
) -> None:
    engine.seconds = 0.02
    with PlainClient(running.url) as client:
        client.open()
        prefixes = [list(range(n + 1)) for n in range(8)]
        for n, ids in enumerate(prefixes):
            client.send([3, n, n, [n], check(ids)])
        replies = [client.receive() for _ in prefixes]
    assert [reply[:3] for reply in replies] == [
        [17, n, [reply_to(ids)]] for n, ids in enumerate(prefixes)
    ]
    assert engine.abandoned == 0


def test_a_cancelled_consult_stops_costing(running: Running, engine: ScriptedEngine) -> None:
    engine.seconds = 30.0
    with PlainClient(running.url) as client:
        client.open()
        client.send([3, 1, 0, [1], check([1]), 1, 60_000])
        until(lambda: engine.running)
        client.send([4, 1])
        until(lambda: not engine.running)
    assert engine.abandoned == 1
    engine.seconds = 0.0
    cloud = cloud_of(running)
    engine.seconds = 30.0
    with pytest.raises(CloudTimeout):
        cloud.open(Prompt((1,))).ask([1], 1, GREEDY, 0.3).result()
    until(lambda: not engine.running)
    cloud.close()


def test_nobody_gets_in_without_a_key(
    engine: ScriptedEngine,
    keys: Path,
    add: Callable[..., str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = add("device")
    with gateway([engine.url], keys=keys) as running:
        for wrong in (None, "ew-wrong", secret[:-1]):
            cloud = GatewayCloud(running.url, key=wrong)
            with pytest.raises(CloudRefused, match="EDGEWISE_CLOUD_KEY"):
                cloud.check(ByteTokenizer())
            cloud.close()
        bodies = {_status(running.url + "/v1/models", key) for key in ("", "ew-wrong")}
        assert len(bodies) == 1
        assert _status(running.url + "/v1/models", secret)[0] == 200
        cloud = cloud_of(running, secret)
        prompt = list(b"a secret prompt")
        cloud.open(Prompt(tuple(prompt))).ask(prompt, 1, GREEDY, 30).result()
        metrics = urllib.request.urlopen(running.url + "/metrics").read().decode()
        cloud.close()
    told = capfd.readouterr()
    for text in (metrics, told.out, told.err):
        assert secret not in text
        assert "secret prompt" not in text
    assert "missing key" in told.out
    assert "wrong key" in told.out
    assert 'edgewise_gateway_asks_total{outcome="answered"} 1.0' in metrics


def _status(url: str, key: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, b""
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_session_cannot_be_taken_over(
    engine: ScriptedEngine, keys: Path, add: Callable[..., str]
) -> None:
    mine, theirs = add("mine"), add("theirs")
    with gateway([engine.url], keys=keys) as running:
        with PlainClient(running.url, mine) as client:
            name = client.open()[2]
            client.ask(1, 0, [1, 2, 3])
        until(lambda: not running.gateway.connections)
        with PlainClient(running.url, theirs) as stranger:
            opened = stranger.open(name)
            assert (opened[2] == name, opened[3]) == (False, 0)
        with PlainClient(running.url, mine) as owner:
            assert owner.open(name)[2:5] == [name, 3, check([1, 2, 3])]
        assert len({session.salt for session in running.gateway.sessions.all()}) == 2


def test_many_devices_each_get_their_own_answers(running: Running) -> None:
    def converse(number: int) -> None:
        cloud = cloud_of(running)
        ids = list(f"device {number} says ".encode())
        session = cloud.open(Prompt(tuple(ids)))
        for _ in range(20):
            completion = session.ask(ids, 1, GREEDY, 30).result()
            assert completion.ids == (reply_to(ids),)
            ids += completion.ids
            session.prefetch(ids)
        session.close()
        cloud.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(converse, range(16)))


def test_a_decoder_prefetches_what_it_writes(cloud: GatewayCloud, engine: ScriptedEngine) -> None:
    """The engine has computed most of what a consult means before it comes."""
    edge = ScriptedEdge(replying("x" * 60, prompt="sky: ", unsure=(50,)))
    decoder = Decoder(edge, router=MaxProb(), policy=Policy(threshold=0.3), cloud=cloud)
    with decoder.stream(list(b"sky: "), max_tokens=60) as events:
        consults: list[Consult] = []
        for event in events:
            # As slow as an edge model is, so that a prefill ends before the next one comes.
            time.sleep(0.005)
            consults += [event] if isinstance(event, Consult) else []
    assert [event.outcome for event in consults] == ["answered"]
    assert consults[0].sent_ids < 16
    assert engine.prefills >= 1


def test_a_whole_answer_is_one_consult(cloud: GatewayCloud) -> None:
    """As evaluation and training ask for it; more than the protocol allows is a sentence."""
    session = cloud.open(Prompt((1,)))
    assert len(session.ask([1], 320, GREEDY, 30).result().ids) == 320
    with pytest.raises(CloudRejected, match="4096"):
        session.ask([1], 5000, GREEDY, 30).result()
    assert session.ask([1], 1, GREEDY, 30).result().ids == (reply_to([1]),)
