"""A key out of force: its open sockets are closed, and what it had in flight ends. And what a key
pays for: prefetches, consults that it gives up, large frames."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from edgewise.completion import Completion
from edgewise.keys.keys import revoke_key
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import UNBOUNDED
from edgewise.wire.protocol import MAX_IDS
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.doubles import PlainEngine, letters
from tests.gateway.plain_client import check, opened
from tests.gateway.processes import until
from tests.gateway.running import gateway

PUSHES = 50

Add = Callable[..., str]


@pytest.mark.parametrize("end", ["revoked", "emptied", "expired", "replaced"])
def test_a_silent_socket_is_closed_as_well(keys: Path, add: Add, end: str) -> None:
    """The device sends nothing at all. Other keys stay."""
    secret, other = add(), add("phone")
    expires = f'"expires": "{datetime.now(UTC).isoformat()}"'
    with gateway([PlainEngine()], keys=keys) as running:
        with opened(running.url, secret) as client, opened(running.url, other) as phone:
            if end == "emptied":
                keys.write_text('{"format": 1, "keys": []}')
            elif end == "expired":
                keys.write_text(keys.read_text().replace('"expires": null', expires, 1))
            else:
                revoke_key(keys, "laptop")
            if end == "replaced":
                add("laptop")
            assert client.receive()[:3] == [19, None, "refused"]
            assert client.code() == 1008
            if end != "emptied":
                assert phone.ask(1, 0, [1])[0] == 17
        until(lambda: not running.gateway.connections)


def test_what_a_revoked_key_sends_is_free(keys: Path, add: Add, engine: ScriptedEngine) -> None:
    """Also where it does not read that it is out. Found by an attack: 50 pushes, 50 prefills."""
    secret = add()
    with gateway([engine.url], keys=keys) as running, opened(running.url, secret) as client:
        client.prefetch(0, [1])
        until(lambda: engine.prefills == 1)
        engine.seconds = 60.0
        client.send([3, 1, 0, [1], check([1]), 1, 60_000])
        until(lambda: engine.running == 1)
        revoke_key(keys, "laptop")
        until(lambda: not running.gateway.connections)
        # A consult in flight ends.
        until(lambda: engine.running == 0)
        assert engine.abandoned == 1
        engine.seconds, asked = 0.0, engine.asked
        with contextlib.suppress(ConnectionClosed):
            for number in range(PUSHES):
                client.prefetch(0, [1, number])
                client.send([3, number, 0, [1], check([1])])
                time.sleep(0.01)
        assert (engine.prefills, engine.asked) == (1, asked)


def test_a_used_up_key_gets_no_prefill(keys: Path, add: Add, engine: ScriptedEngine) -> None:
    """Found by an attack: 300 prefills by a key whose day was used up."""
    secret = add(tokens_per_day=1)
    with gateway([engine.url], keys=keys) as running, opened(running.url, secret) as client:
        assert client.ask(1, 0, [1])[0] == 17
        for number in range(PUSHES):
            client.prefetch(len(client.held), [number])
            time.sleep(0.005)
        # Its ids are held all the same: only the new one goes with the next consult.
        failed = client.ask(2, len(client.held), [7])
    assert failed[:3] == [19, 2, "unavailable"]
    assert failed[4] > 1000 or datetime.now(UTC).hour == 23
    assert engine.prefills == 0


def test_a_key_is_charged_for_consults_it_cancels(keys: Path, add: Add) -> None:
    secret, whole = add(ids_per_second=1.0), list(range(500))
    with gateway([PlainEngine()], keys=keys) as running, opened(running.url, secret) as client:
        for number in range(5):
            client.send([3, number, 0, whole, check(whole)])
            client.send([4, number])
        # The first of them may be what pays for those that never began.
        client.send([3, 8, 0, [1], check([1])])
        client.send([3, 9, 0, [1], check([1])])
        frame = client.receive()
        while frame[1] != 9:
            frame = client.receive()
    assert (frame[0], frame[2]) == (19, "unavailable")


@pytest.mark.parametrize("rate", [0.0, 10.0**9])
def test_full_prefixes_are_taken_in_their_order(keys: Path, add: Add, rate: float) -> None:
    """Large frames are taken apart elsewhere; what follows them waits."""
    secret, seen = add(ids_per_second=rate), list[Sequence[int]]()

    def act(ids: Sequence[int], n: int) -> Completion:
        seen.append(list(ids))
        return letters(ids, n)

    many = list(range(MAX_IDS - 10))
    served = PlainEngine(act=act)
    with gateway([served], keys=keys) as running, opened(running.url, secret) as client:
        client.prefetch(0, many)
        for number in range(5):
            assert client.ask(number, len(client.held), [number])[0] == 17
        client.send([3, 9, 0, many, 0])
        assert client.receive() == [18, 9]
    assert seen[-1] == [*many, 0, 1, 2, 3, 4]


class Slow(SqliteLimits):
    """Takes its time."""

    async def add(self, name: str, day: int, tokens: int, most: int = UNBOUNDED) -> bool:
        granted = await super().add(name, day, tokens, most)
        await asyncio.sleep(0.05)
        return granted


@pytest.mark.parametrize("how", ["engine fails", "cancelled", "device leaves", "deadline"])
def test_unwritten_tokens_are_given_back(
    keys: Path, add: Add, engine: ScriptedEngine, how: str
) -> None:
    secret = add(tokens_per_day=20, ids_per_second=20_000)
    limits = Slow(keys.with_name("limits"))
    with gateway([engine.url], keys=keys, limits=limits) as running:
        with opened(running.url, secret) as client:
            if how == "engine fails":
                engine.fault = lambda number: "declined"
                assert client.ask(1, 0, [1], 20)[0] == 19
                engine.fault = lambda number: None
            else:
                engine.seconds = 60.0
                deadline = 300 if how == "deadline" else 60_000
                client.send([3, 1, 0, [1], check([1]), 20, deadline])
                until(lambda: engine.running)
            if how == "cancelled":
                client.send([4, 1])
            if how == "deadline":
                assert client.receive()[:3] == [19, 1, "timeout"]
        until(lambda: not running.gateway.connections and not engine.running)
        assert engine.abandoned == int(how != "engine fails")
        engine.seconds = 0.0
        with opened(running.url, secret) as client:
            until(lambda: client.ask(1, 0, [1], 20)[0] == 17, "what was given back")
            assert client.ask(2, 0, [1], 20)[2] == "unavailable"
