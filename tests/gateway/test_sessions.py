"""Sessions in bounded memory: of all keys, and of each."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewise.gateway.sessions import Session, Sessions
from edgewise.wire.protocol import Ledger


def opened(sessions: Sessions, name: str = "", key: str = "k") -> Session:
    session = sessions.open(name, key)
    assert session is not None
    return session


def put(sessions: Sessions, session: Session, ids: int | list[int]) -> Ledger | None:
    """The first `ids` numbers, or these."""
    told = list(range(ids)) if isinstance(ids, int) else ids
    return sessions.put(session, 0, told, Ledger(told).checksum)


def test_a_device_comes_back_to_its_own_session_only() -> None:
    sessions = Sessions(most=4, most_ids=1000, idle=60)
    first = opened(sessions)
    put(sessions, first, [1, 2, 3])
    assert opened(sessions, first.name) is not first  # its device is still here
    sessions.leave(first)
    assert opened(sessions, first.name, "other") is not first
    assert opened(sessions, first.name) is first
    assert first.ledger.ids == [1, 2, 3]
    # What is idle goes.
    sessions = Sessions(most=10, most_ids=1000, idle=0.0)
    first = opened(sessions)
    put(sessions, first, 10)
    sessions.leave(first)
    sessions.expire()
    assert (len(sessions), sessions.ids) == (0, 0)
    assert opened(sessions, first.name) is not first


def test_room_is_made_by_those_that_left_first() -> None:
    """Room for sessions, and for ids."""
    sessions = Sessions(most=2, most_ids=1000, idle=60)
    first, second = opened(sessions), opened(sessions)
    assert sessions.open("", "k") is None
    sessions.leave(second)
    sessions.leave(first)
    opened(sessions)
    assert opened(sessions, first.name) is first
    assert len(sessions) == 2
    sessions = Sessions(most=10, most_ids=100, idle=60)
    held = [opened(sessions) for _ in range(3)]
    put(sessions, held[0], 40)
    put(sessions, held[1], 40)
    sessions.leave(held[1])
    sessions.leave(held[0])
    put(sessions, held[2], 40)
    assert sessions.ids == 80
    assert opened(sessions, held[1].name) is not held[1]
    assert opened(sessions, held[0].name) is held[0]


def test_ids_of_devices_that_are_here_are_bounded_too() -> None:
    """Who used its session least recently is asked for its ids again; nothing is wrong then."""
    sessions = Sessions(most=100, most_ids=100, idle=60)
    held = [opened(sessions) for _ in range(6)]
    for session in held:
        assert put(sessions, session, 40) is not None
        assert sessions.ids <= 100
    assert [len(session.ledger) for session in held] == [0, 0, 0, 0, 40, 40]
    assert sessions.put(held[0], 40, [1], 0) is None
    copied = put(sessions, held[0], 100)
    assert copied is not None
    assert len(copied) == 100
    assert [len(session.ledger) for session in held] == [100, 0, 0, 0, 0, 0]
    # More than all may hold are answered and not held.
    copied = put(sessions, held[0], 110)
    assert copied is not None
    assert copied.ids == list(range(110))
    assert (len(held[0].ledger), sessions.ids) == (0, 0)


@pytest.mark.parametrize("most", [100, 6])
def test_a_key_that_needs_room_gives_up_its_own_first(most: int) -> None:
    """Room for ids, and for sessions."""
    sessions = Sessions(most=most, most_ids=1000, idle=60)
    theirs = opened(sessions, key="other")
    put(sessions, theirs, 500)
    sessions.leave(theirs)
    for _ in range(20):
        session = opened(sessions)
        put(sessions, session, 100)
        sessions.leave(session)
    assert opened(sessions, theirs.name, "other") is theirs
    assert (len(theirs.ledger), sessions.ids) == (500, 1000)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "back", "put", "leave", "forget", "expire"]),
        st.sampled_from("ab"),
        st.integers(0, 60),
    ),
    max_size=60,
)


@given(STEPS)
@example([("open", "a", 0), ("put", "a", 4), ("leave", "a", 0), ("back", "a", 0)])
def test_the_books_are_right_whatever_happens(steps: list[tuple[str, str, int]]) -> None:
    sessions = Sessions(most=5, most_ids=150, idle=60)
    here: list[Session] = []
    known: dict[str, Session] = {}
    for what, key, number in steps:
        if what in ("open", "back"):
            name = [*known][number % len(known)] if what == "back" and known else ""
            if session := sessions.open(name, key):
                here.append(session)
                known[session.name] = session
        elif what == "expire":
            sessions.expire()
        elif here:
            session = here[number % len(here)]
            if what == "put":
                put(sessions, session, number)
            else:
                here.remove(session)
                (sessions.leave if what == "leave" else sessions.forget)(session)
        assert len(sessions) <= 5
        # Those that were dropped are empty.
        assert sessions.ids == sum(len(session.ledger) for session in known.values()) <= 150
        for one in "ab":
            assert sessions.attached(one) == sum(session.key == one for session in here)
