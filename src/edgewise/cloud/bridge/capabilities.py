"""How an API that takes text continues an answer that was begun: a few requests find it out.

What is asked is fixed. That a model writes other words than another proves nothing; only one that
begins anew does.
"""

import msgspec

from edgewise.engines.replies import TextRequest
from edgewise.engines.text import TextEngine
from edgewise.errors import CloudProtocolError, CloudRejected
from edgewise.prompts import Message

TOKENS = 6
"""A reply's, in a probe."""

_ASKED = (Message("user", "Count in words from one to ten, separated by spaces."),)


_BEGUN = (("one two three fo", "ur"), ("one two three four five six sev", "en"))
"""Beginnings of an answer that end inside of a word, and the rest of that word."""
# So begins no answer of a model's own.
_ODD = "= # one two three fo"
_WORDS = "one two three four"
_ANEW = ("one", "1", "sure", "i ", "i'", "here", "certainly", "of course", "okay", "ok,", "great")
"""How answers begin."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """How an API continues what it is sent.

    `echoes`: a reply begins with it. `trims`: the blanks that it ends with may be lost.
    """

    echoes: bool = False
    trims: bool = False

    @property
    def in_words(self) -> str:
        """For people."""
        first = "exact, behind what it repeats" if self.echoes else "exact"
        blanks = "may drop blanks behind what it is sent" if self.trims else "keeps blanks"
        return f"{first}, {blanks}"


async def capabilities(engine: TextEngine) -> Capabilities:
    """What it does; raises `CloudRejected` where it does not continue."""
    return await _Probe(engine).capabilities()


class _Probe:
    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._echoes = False

    async def capabilities(self) -> Capabilities:
        await self._continues()
        await self._require_blanks()
        return Capabilities(echoes=self._echoes, trims=await self._trims())

    async def _continues(self) -> None:
        """Raises `CloudRejected` for one that does not."""
        replies: list[str] = []
        for begun, rest in _BEGUN:
            reply = await self._reply(begun)
            if not self._echoes and reply.lstrip().startswith(begun):
                reply = await self._repeated()
            if reply.lstrip().startswith(rest):
                return
            # Like an answer's beginning, or the begun word once more.
            word = begun.split()[-1] + rest
            if not reply.lstrip().lower().startswith((word, *_ANEW)):
                return
            replies.append(reply)
        raise self._restarts(replies[0])

    async def _repeated(self) -> str:
        """The reply to a beginning that none of its own would have: what it repeats is an echo."""
        reply = (await self._asked(_ODD)).lstrip()
        if not reply.startswith(_ODD) or reply == _ODD:
            raise self._restarts(reply)
        self._echoes = True
        return reply.removeprefix(_ODD)

    async def _require_blanks(self) -> None:
        """Raises `CloudRejected` where blanks are lost before a reply: words would run together."""
        if (await self._reply(_WORDS)).startswith("five"):
            raise CloudRejected(
                f"{self._engine.url!r} drops the blank before the words that it adds",
                hint="choose another provider, or an engine by token ids",
            )

    async def _trims(self) -> bool:
        """Whether blanks behind what is sent are lost, or not even taken."""
        try:
            return (await self._reply(f"{_WORDS} "))[:1].isspace()
        except CloudRejected:
            return True

    async def _reply(self, begun: str) -> str:
        """What it adds."""
        reply = await self._asked(begun)
        return unechoed(begun, reply, self._engine.url) if self._echoes else reply

    async def _asked(self, begun: str) -> str:
        try:
            return (await self._engine.complete(TextRequest(_ASKED, begun, TOKENS))).text
        except CloudRejected as error:
            if error.setting is not None:
                raise
            raise CloudRejected(
                f"{self._engine.url!r} does not take the beginning of an answer "
                f"({error.message.rstrip('.')})",
                request_id=error.request_id,
            ) from error

    def _restarts(self, reply: str) -> CloudRejected:
        return CloudRejected(
            f"{self._engine.url!r} begins an answer anew instead of continuing it: to "
            f"{_BEGUN[0][0]!r} it added {reply[:40]!r}"
        )


def unechoed(sent: str, reply: str, url: str) -> str:
    """What a reply adds, of an API that begins it with what it was sent.

    Raises `CloudProtocolError` where it does not.
    """
    again = reply.lstrip()
    if not sent.strip():
        return reply
    for begun in (sent.lstrip(), sent.strip()):
        if again.startswith(begun):
            return again[len(begun) :]
    raise CloudProtocolError(f"{url!r} did not begin its reply with what it was sent.")
