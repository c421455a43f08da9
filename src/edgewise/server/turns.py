"""Turns of other dialects as a chat's: what chat templates expect."""

from collections.abc import Sequence

from edgewise.server.errors import ApiError
from edgewise.server.schemas import ChatMessage

_SYSTEM = ("system", "developer")


def joined(turns: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same conversation with one system message at its beginning, and one turn at a time.

    Agents send several of both, and most templates take neither: turns of one role that follow
    each other become one, with a blank line between. Raises `ApiError` where there is no turn.
    """
    if not turns:
        raise ApiError(400, "The conversation has no message that can be read; send one.")
    found: list[ChatMessage] = []
    for turn in turns:
        if found and _mixes(found[-1], turn):
            content = f"{found[-1].text}\n\n{turn.text}"
            found[-1] = found[-1].model_copy(update={"content": content})
        else:
            found.append(turn)
    return found


def _mixes(one: ChatMessage, other: ChatMessage) -> bool:
    return one.role == other.role or (one.role in _SYSTEM and other.role in _SYSTEM)
