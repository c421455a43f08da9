"""The table of connections against a plain model of it."""

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from edgewise.listening.seats import CLOSE_SECONDS, STALL_SECONDS, Seat, Seats, Stage, peer_of


class Peer:
    """A transport that is cut when it is told so."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address, self.cut, self.closing = address, False, False

    def get_extra_info(self, name: str) -> Any:
        return (self.address, 1) if name == "peername" else None

    def abort(self) -> None:
        self.cut = True

    def is_closing(self) -> bool:
        return self.closing


class Clock:
    """Goes on when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def transport(address: str = "10.0.0.1") -> tuple[Peer, asyncio.Transport]:
    made = Peer(address)
    return made, cast(asyncio.Transport, made)


ACTS = st.one_of(
    st.tuples(st.just("come"), st.integers(0, 3)),
    st.tuples(st.sampled_from(list(Stage)), st.integers(0, 40)),
    st.tuples(st.just("leave"), st.integers(0, 40)),
)


@given(st.lists(ACTS, max_size=80), st.integers(1, 8), st.integers(0, 4))
def test_the_limits_hold_and_the_oldest_silent_goes_first(
    acts: list[tuple[Any, int]], most: int, per_peer: int
) -> None:
    table, clock = Seats(most, per_peer), 0
    held: list[tuple[Seat, Peer, list[int]]] = []
    for what, number in acts:
        clock += 1
        if what == "come":
            peer, made = transport(f"10.0.0.{number}")
            own = [one for one in held if one[1].address == peer.address]
            crowd = own if per_peer and len(own) >= per_peer else held
            full = crowd is own or len(held) >= most
            waiting = [one for one in crowd if one[0].stage is not Stage.BUSY]
            seat = table.take(made, lambda: None)
            if full and not waiting:
                assert seat is None
                continue
            if full:
                order = list(Stage)
                gone = min(waiting, key=lambda one: (order.index(one[0].stage), one[2][0]))
                assert gone[1].cut
                held.remove(gone)
            assert seat is not None
            held.append((seat, peer, [clock]))
        elif held:
            seat, peer, since = held[number % len(held)]
            if what == "leave":
                table.leave(seat)
                table.leave(seat)
                held.remove((seat, peer, since))
            elif seat.stage is not what:
                table.move(seat, what)
                since[0] = clock
        assert len(table) == len(held) <= most
        assert not any(peer.cut for _, peer, _ in held)


def test_each_stage_has_its_time() -> None:
    clock = Clock()
    table, late = Seats(10, clock=clock), list[tuple[Stage, float]]()
    for stage in Stage:
        seat = table.take(transport()[1], lambda: None)
        assert seat is not None
        seat.late = lambda seat=seat: (late.append((seat.stage, clock.now)), table.leave(seat))
        table.move(seat, stage)
    for seconds in (109, 111, 159, 161, 1000):
        clock.now = seconds
        table.sweep()
    assert late == [(Stage.SILENT, 111), (Stage.READING, 161)]
    assert len(table) == 2


def test_who_does_not_read_is_cut() -> None:
    clock = Clock()
    table = Seats(10, clock=clock)
    for setting in ("stalled", "reads again", "closing"):
        peer, made = transport()
        seat = table.take(made, lambda: None)
        assert seat is not None
        table.move(seat, Stage.BUSY)
        peer.closing = setting == "closing"
        table.stall(seat, stalled=setting != "closing")
        if setting == "reads again":
            clock.now += STALL_SECONDS - 1
            table.sweep()
            table.stall(seat, stalled=False)
        table.sweep()
        clock.now += max(STALL_SECONDS, CLOSE_SECONDS) + 1
        table.sweep()
        assert peer.cut == (setting != "reads again")
    assert len(table) == 1


def test_whose_connection_it_is() -> None:
    def of(address: str) -> str:
        return peer_of(transport(address)[1])

    assert of("10.1.2.3") == of("::ffff:10.1.2.3") == "10.1.2.3"
    assert of("2001:db8::1") == of("2001:db8::2:3%eth0") == "2001:db8::/64"
    assert of("2001:db8:0:1::1") != of("2001:db8::1")
    assert of("somewhere") == "somewhere"
