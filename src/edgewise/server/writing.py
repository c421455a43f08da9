"""What turns an answer's events into a reply, in whatever dialect."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import msgspec

from edgewise.events import Event
from edgewise.prompts import Prompt
from edgewise.server.admission import Ticket
from edgewise.server.errors import ApiError


class Framing:
    """How the chunks of a stream become server-sent events: data alone, `[DONE]` at the end."""

    end: ClassVar[str | None] = "[DONE]"
    """The last event's data, where there is one."""

    named: ClassVar[bool] = False
    """Whether an event is called what its `type` says."""

    def frame(self, chunk: dict[str, Any]) -> dict[str, str]:
        """An event's fields."""
        data = msgspec.json.encode(chunk).decode()
        return {"event": chunk["type"], "data": data} if self.named else {"data": data}

    def failed(self, error: ApiError) -> dict[str, Any]:
        """What is said of an error where the answer has begun."""
        return error.body()


class Writer(Framing, ABC):
    """The reply to one request."""

    id: str
    """Of the answer, as the reply tells it."""

    ignored: Sequence[str] = ()
    """Fields of the request that changed nothing."""

    async def read(self, prompt: Prompt, ticket: Ticket) -> None:
        """Told of the prompt before any event, to look into it where the reply says more of it."""

    @abstractmethod
    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """The reply in one piece."""

    @abstractmethod
    def chunks(self, events: AsyncGenerator[Event]) -> AsyncGenerator[dict[str, Any]]:
        """The reply as it comes; closes `events`."""
