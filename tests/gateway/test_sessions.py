"""Sessions in bounded memory."""

from edgewise.gateway.sessions import Session, Sessions


def opened(sessions: Sessions, name: str = "", key: str = "k") -> Session:
    session = sessions.open(name, key)
    assert session is not None
    return session


def test_a_device_comes_back_to_its_own_session_only() -> None:
    sessions = Sessions(most=4, most_ids=1000, idle=60)
    first = opened(sessions)
    first.ledger.put(0, [1, 2, 3])
    assert opened(sessions, first.name) is not first  # its device is still here
    sessions.leave(first)
    assert opened(sessions, first.name, "other") is not first
    assert opened(sessions, first.name) is first
    assert first.ledger.ids == [1, 2, 3]


def test_room_is_made_by_those_that_left_first() -> None:
    sessions = Sessions(most=2, most_ids=1000, idle=60)
    first, second = opened(sessions), opened(sessions)
    assert sessions.open("", "k") is None
    sessions.leave(second)
    sessions.leave(first)
    opened(sessions)
    assert opened(sessions, first.name) is first
    assert len(sessions) == 2


def test_what_is_idle_goes() -> None:
    sessions = Sessions(most=10, most_ids=1000, idle=0.0)
    first = opened(sessions)
    sessions.leave(first)
    sessions.expire()
    assert len(sessions) == 0
    assert opened(sessions, first.name) is not first


def test_ids_are_bounded() -> None:
    sessions = Sessions(most=10, most_ids=100, idle=60)
    held = [opened(sessions) for _ in range(4)]
    for session in held:
        session.ledger.put(0, range(60))
    sessions.leave(held[0])
    sessions.leave(held[1])
    sessions.leave(held[2])
    sessions.expire()
    assert sessions.ids <= 120
    assert opened(sessions, held[2].name) is not held[0]
    assert sessions.attached("k") >= 1


def test_a_session_that_is_closed_is_forgotten() -> None:
    sessions = Sessions(most=10, most_ids=100, idle=60)
    first = opened(sessions)
    sessions.forget(first)
    assert len(sessions) == 0
    assert opened(sessions, first.name).name != first.name
