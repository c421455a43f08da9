"""What a prompt is made of."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from edgewise.errors import UsageError

MAX_PROMPT = 4 << 20
"""Longest text that is taken from a user or from a chat template, characters."""


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an answer may call; `parameters` is a JSON schema of an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = {}


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that an answer made; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn of a conversation. One that is `local` never leaves, nor does what follows it.

    An assistant's may have made `tool_calls`; what one of them came to is a message of the role
    "tool" with the call's id.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    local: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Prompt(msgspec.Struct, frozen=True):
    """What an answer follows: ids of the edge's vocabulary, and the messages they stand for.

    `messages` is None where the ids were made from no conversation; `local` says of ids what a
    `Message` says of itself. What begins alike is one conversation of one `owner`.
    """

    ids: tuple[int, ...]
    messages: tuple[Message, ...] | None = None
    local: bool = False
    owner: str = ""

    @property
    def local_only(self) -> bool:
        """Whether nothing of an answer to it may leave the device."""
        return self.local or any(message.local for message in self.messages or ())


Prompted = str | Prompt | Sequence[Message | Mapping[str, object]] | Sequence[int]
"""A user's text, a conversation (dicts have a `Message`'s fields), or ids of the edge's."""


def require_text(what: str, text: str) -> None:
    """Raises `UsageError` for text too long, or with what no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not valid UTF-8", hint="convert it first") from error
    if len(text) > MAX_PROMPT:
        raise UsageError(f"{what} has more than {MAX_PROMPT} characters", hint="shorten it")
