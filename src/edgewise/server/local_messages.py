"""Which messages are local: they say so themselves, and are remembered where clients drop that."""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Sequence

from msgspec.structs import replace

from edgewise.prompts import Message

KEPT = 10_000
"""Most conversations that are remembered as local."""


class LocalMessages:
    """Remembers, as keyed digests and while the server runs, where conversations became local.

    Many clients send a conversation back without fields that they do not know. In the event loop's
    thread only.
    """

    def __init__(self, *, most: int = KEPT) -> None:
        self._most = most
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def marked(self, messages: Sequence[Message], *, local: bool, owner: str = "") -> list[Message]:
        """The same, with every message of `owner`'s marked that is local or follows one that is.

        With `local` the last one is. A conversation that begins as one that became local does
        is local from there on, whatever its marks say; a beginning has a user's message in it,
        since a system message alone is that of others as well.
        """
        found: list[Message] = []
        stays = asked = remembered = False
        beginning = owner.encode()
        for number, message in enumerate(messages):
            beginning = self._after(beginning, message)
            asked = asked or message.role == "user"
            marked = message.local or (local and number == len(messages) - 1)
            stays = stays or marked or beginning in self._known
            if stays and asked and not remembered:
                self._remember(beginning)
                remembered = True
            found.append(replace(message, local=stays))
        return found

    def _after(self, beginning: bytes, message: Message) -> bytes:
        """The digest of a beginning with one more message."""
        told = f"{message.role}\n{message.content}"
        if message.tool_calls or message.tool_call_id:
            told += f"\n{message.tool_call_id}\n{message.tool_calls!r}"
        text = told.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(beginning + text, key=self._key, digest_size=16).digest()

    def _remember(self, beginning: bytes) -> None:
        self._known[beginning] = None
        self._known.move_to_end(beginning)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
