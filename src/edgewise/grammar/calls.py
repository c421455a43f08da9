"""Parsing of tool calls out of the text of an answer while it is written."""

import re
import secrets
import string
from collections.abc import Iterator, Sequence

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.grammar.response_format import ResponseFormat
from edgewise.prompts import ToolCall
from edgewise.prompts.tool_formats import ToolFormat, bare_call, tool_format

_LETTERS = string.ascii_letters + string.digits
_ID = 9  # characters of a call's id: as many as Mistral's templates insist on


class Said(msgspec.Struct, frozen=True):
    """A piece of the answer's text outside of tool calls."""

    text: str


class CallBegun(msgspec.Struct, frozen=True):
    """The beginning of a tool call: its number in the answer (from 0), its id, the tool's name."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A further piece of the JSON text of a call's arguments; `index` is the number of the call."""

    index: int
    text: str


Part = Said | CallBegun | CallArguments


class CallReader:
    """Splits the text of an answer into plain text and tool calls while it is written.

    `style` is the format in which the model writes calls. `bare` names the tools that may also be
    called by an answer that is only the JSON of a call, without the opening text of that format.
    What follows the calls is dropped.
    """

    def __init__(self, style: ToolFormat, bare: Sequence[str] = ()) -> None:
        self._style = style
        self._bare = re.compile(rf"{bare_call(bare or ['(?!)'])}(?=\{{)")
        self._bare_heads = [
            f'{fence}{{{kind}"name":"{name}","{key}":{{'
            for fence in ("", "```", "```json")
            for kind in ("", '"type":"function",')
            for name in bare
            for key in ("arguments", "parameters")
        ]
        self._text = ""
        self._calls = 0
        self._place = self._beginning
        self._arguments = _Object()

    @property
    def called(self) -> bool:
        """Whether the answer has a tool call, and its last call is complete."""
        return self._calls > 0 and self._place == self._behind

    def feed(self, text: str) -> list[Part]:
        """Read the answer's next text; return its parts, but hold back what may begin a call."""
        self._text += text
        parts: list[Part] = []
        while self._text:
            before = len(self._text), self._place
            parts += self._place()
            if before == (len(self._text), self._place):
                break
        return parts

    def finish(self) -> list[Part]:
        """Return the text held back as [`Said`]; [] if there is none, or once a call has begun."""
        left, self._text = self._text, ""
        return [Said(left)] if left and self._place in (self._outside, self._beginning) else []

    def _outside(self) -> Iterator[Part]:
        opening = self._style.opening
        # Without an opening a call is the whole answer.
        before, found, behind = self._text.partition(opening) if opening else (self._text, "", "")
        if found:
            self._text, self._place = behind, self._name
        else:
            known = len(self._text) - overlap(self._text, opening)
            before, self._text = self._text[:known], self._text[known:]
        if before:
            yield Said(before)

    def _beginning(self) -> Iterator[Part]:
        squeezed = "".join(self._text.split())
        if found := self._bare.match(self._text):
            self._text = self._text[found.end() :]
            yield self._begun(found["tool"])
        elif not any(head.startswith(squeezed) for head in self._bare_heads):
            self._place = self._outside

    def _name(self) -> Iterator[Part]:
        style = self._style
        head, found, behind = self._text.partition(style.before_arguments)
        if found:
            self._text = behind
            yield self._begun(head.removeprefix(style.before_name))

    def _begun(self, name: str) -> CallBegun:
        self._arguments, self._place = _Object(), self._inside
        self._calls += 1
        id = "".join(secrets.choice(_LETTERS) for _ in range(_ID))
        return CallBegun(self._calls - 1, id, name)

    def _inside(self) -> Iterator[Part]:
        end = self._arguments.end(self._text)
        text = self._text if end is None else self._text[:end]
        self._text = self._text[len(text) :]
        if end is not None:
            self._place = self._behind
        yield CallArguments(self._calls - 1, text)

    def _behind(self) -> Iterator[Part]:
        following = f"{self._style.closing}{self._style.between}"
        if self._style.between and self._text.startswith(following):
            self._text, self._place = self._text[len(following) :], self._name
        yield from ()


class _Object:
    """Finds the end of a JSON object whose text comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = False

    def end(self, text: str) -> int | None:
        """Return where in `text`, the next piece, the object has ended; None if it goes on."""
        for at, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        return None


def call_reader(tokenizer: Tokenizer, format: ResponseFormat | None) -> CallReader | None:
    """Return a reader of the tool calls in an answer; None if its response format has no tools."""
    if format is None or not format.tools:
        return None
    # Where JSON of a schema is the text, a call has its opening.
    bare = () if format.schema is not None else [tool.name for tool in format.tools]
    return CallReader(tool_format(tokenizer), bare)


def collected(reader: CallReader, answer: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text and the tool calls of a whole `answer`; `reader` must have read nothing yet.

    The arguments of the last call are incomplete if the answer was cut off.
    """
    text: list[str] = []
    begun: list[CallBegun] = []
    arguments: list[str] = []
    for part in [*reader.feed(answer), *reader.finish()]:
        if isinstance(part, Said):
            text.append(part.text)
        elif isinstance(part, CallBegun):
            begun.append(part)
            arguments.append("")
        else:
            arguments[part.index] += part.text
    calls = zip(begun, arguments, strict=True)
    return "".join(text), tuple(ToolCall(one.id, one.name, given) for one, given in calls)


def overlap(text: str, opening: str) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of `opening`."""
    longest = min(len(text), len(opening) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(opening[:size])), 0)
