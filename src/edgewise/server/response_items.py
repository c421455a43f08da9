"""The items of a response as they grow, and what `/v1/responses` says of them on the way."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

Event = tuple[str, dict[str, Any]]
"""What an event is called behind `response.`, and its fields."""


class Item(ABC):
    """One item of the output, the `index`th."""

    prefix: str

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = f"{self.prefix}_{secrets.token_hex(24)}"

    @property
    def place(self) -> dict[str, Any]:
        """Where it is."""
        return {"item_id": self.id, "output_index": self.index}

    @abstractmethod
    def told(self, status: str) -> dict[str, Any]:
        """The item so far."""

    @abstractmethod
    def begun(self) -> Iterator[Event]:
        """What is said before it grows."""

    @abstractmethod
    def ended(self) -> Iterator[Event]:
        """What is said once it is whole, before the item itself is."""

    def opened(self) -> Iterator[Event]:
        """All that is said where it begins."""
        item = self.told("in_progress") | self.empty()
        yield "output_item.added", {"output_index": self.index, "item": item}
        yield from self.begun()

    def closed(self, status: str) -> Iterator[Event]:
        """All that is said where it ends."""
        yield from self.ended()
        yield "output_item.done", {"output_index": self.index, "item": self.told(status)}

    @abstractmethod
    def empty(self) -> dict[str, Any]:
        """The fields that grow, at the beginning."""


class WrittenText(Item):
    """A message."""

    prefix = "msg"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    @property
    def place(self) -> dict[str, Any]:
        return {**super().place, "content_index": 0}

    def add(self, text: str, logprobs: Sequence[Any] = ()) -> Event:
        """More of its text, and what is said of it."""
        self._texts.append(text)
        self._logprobs += logprobs
        delta = {"delta": text, "logprobs": list(logprobs)}
        return "output_text.delta", {**self.place, **delta}

    def told(self, status: str) -> dict[str, Any]:
        head = {"type": "message", "id": self.id, "role": "assistant", "status": status}
        return {**head, "content": [self._part()]}

    def begun(self) -> Iterator[Event]:
        yield "content_part.added", {**self.place, "part": self._part()}

    def ended(self) -> Iterator[Event]:
        part = self._part()
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        yield "output_text.done", {**self.place, **text}
        yield "content_part.done", {**self.place, "part": part}

    def empty(self) -> dict[str, Any]:
        return {"content": []}

    def _part(self) -> dict[str, Any]:
        text = "".join(self._texts)
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class WrittenCall(Item):
    """A call of a tool."""

    prefix = "fc"

    def __init__(self, index: int, call: str, name: str) -> None:
        """`call` is the id by which its outcome names it."""
        super().__init__(index)
        self._call, self._name = call, name
        self._arguments: list[str] = []

    def add(self, arguments: str) -> Event:
        """More of its arguments, and what is said of it."""
        self._arguments.append(arguments)
        return "function_call_arguments.delta", {**self.place, "delta": arguments}

    def told(self, status: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": self.id,
            "call_id": self._call,
            "name": self._name,
            "arguments": "".join(self._arguments),
            "status": status,
        }

    def begun(self) -> Iterator[Event]:
        yield from ()

    def ended(self) -> Iterator[Event]:
        told = {"name": self._name, "arguments": "".join(self._arguments)}
        yield "function_call_arguments.done", {**self.place, **told}

    def empty(self) -> dict[str, Any]:
        return {"arguments": ""}
