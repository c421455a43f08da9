"""A text engine in this process that writes a known text, and does with blanks as it is told."""

from collections.abc import Callable

from edgewise.engines.base import NOBODY, Client, Described
from edgewise.engines.text import TextContinuation, TextEngine, TextRequest
from edgewise.prompts import Message
from edgewise.servers.chat import ChatServer

Speaks = Callable[[str], str]
"""From an answer so far to what a model goes on with, to its end."""

PER_TOKEN = 4


def counting(answer: str) -> str:
    """What a model that counts goes on with."""
    return writing("one two three four five six seven eight nine ten")(answer)


def writing(text: str) -> Speaks:
    """The rest of a text where it was begun, else its own words."""

    def speaks(answer: str) -> str:
        begun = answer.removeprefix("= # ")
        own = f" and so on, {len(answer)} times"
        return text[len(begun) :] if text.startswith(begun) else own

    return speaks


class TextDouble(TextEngine):
    """Goes on as `speaks` says; a token is four characters.

    `asked` are the answers that it was sent. It repeats them (`echoes`), begins anew (`restarts`),
    loses blanks before replies (`strips`) and behind what it is sent (`trims`).
    """

    def __init__(
        self,
        speaks: Speaks = counting,
        *,
        echoes: bool = False,
        restarts: bool = False,
        strips: bool = False,
        trims: bool = False,
        fault: Callable[[int], Exception | None] = lambda number: None,
    ) -> None:
        super().__init__(ChatServer(name="double"), "http://double.example")
        self.speaks = speaks
        self.fault: Callable[[int], Exception | None] = fault
        self.echoes, self.restarts, self.strips, self.trims = echoes, restarts, strips, trims
        self.asked: list[str] = []
        self.told: list[tuple[Message, ...]] = []
        self.described = Described("double")
        self.closed = False
        self.metered = True

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        messages, answer, n, *_ = request
        self.asked.append(answer)
        self.told.append(tuple(messages))
        if client.sent is not None:
            client.sent.add(0, answer.encode())
        if error := self.fault(len(self.asked) - 1):
            raise error
        begun = "" if self.restarts else answer.rstrip() if self.trims else answer
        rest = self.speaks(begun)
        text = rest[: PER_TOKEN * n]
        if self.strips:
            text = text.lstrip()
        whole = answer + text if self.echoes else text
        size = len(answer) // PER_TOKEN
        counts = (size, size // 2, -(-len(text) // PER_TOKEN)) if self.metered else (None,) * 3
        return TextContinuation(
            text=whole,
            ended=len(rest) <= PER_TOKEN * n,
            prompt=counts[0],
            cached=counts[1],
            written=counts[2],
        )

    async def describe(self) -> Described:
        return self.described

    async def close(self) -> None:
        self.closed = True
        await super().close()
