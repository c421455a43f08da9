"""Encoding of conversations such that only the template's own text makes control tokens.

A message may contain the text of a control token, such as `<|im_end|>`, and must not produce that
token. So marks (Unicode noncharacters) are put into the messages before they are rendered. A
control token's text with a mark inside came from a message, and is encoded as plain text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import ids_of_text, once
from edgewise.errors import UsageError
from edgewise.prompts.messages import Message, Tool, texts_of
from edgewise.prompts.rendering import render
from edgewise.prompts.tool_formats import tool_template

# Unicode's noncharacters, which are not meant for interchange: messages hardly contain them.
_MARKS = (
    *map(chr, range(0xFDD0, 0xFDF0)),
    *(chr((plane << 16) | last) for plane in range(1, 17) for last in (0xFFFE, 0xFFFF)),
)

_BLANKS = " \t\n\v\f\r"  # blanks that llama.cpp drops beside a token that strips them


class ControlTokens:
    """Finds the texts of a vocabulary's control tokens in other text.

    `special` maps token ids to these texts. `marked` and `guarded` put a character, `mark`, inside
    each of them, so that it no longer matches; a text of one character is left as it is.
    """

    def __init__(self, special: Mapping[int, str]) -> None:
        self._ids = {text: token for token, text in sorted(special.items(), reverse=True) if text}
        texts = sorted(self._ids, key=len, reverse=True)
        self._head = min(3, *map(len, texts)) if texts else 0
        self._sizes: dict[str, list[int]] = {}
        for text in texts:
            sizes = self._sizes.setdefault(text[: self._head], [])
            sizes += [len(text)] if len(text) not in sizes else []
        self._begins = _any_of({text[0] for text in texts})
        # In either case, which a template may change.
        self._first = _any_of({text[0] for text in texts if len(text) > 1}, cased=True)
        self._last = _any_of({text[-1] for text in texts if len(text) > 1}, cased=True)

    def could_come_of(self, text: str) -> bool:
        """Whether `text` has a control token's first or last character, in upper or lower case."""
        return bool(self._first.search(text) or self._last.search(text))

    def marked(self, text: str, mark: str) -> str:
        """Return `text` with `mark` after the first character of each control token's text."""
        parts: list[str] = []
        done = 0
        for start, end in self._found(text):
            if end - start > 1:
                parts.append(text[done : start + 1])
                done = start + 1
        return mark.join([*parts, text[done:]])

    def guarded(self, text: str, mark: str) -> str:
        """Return `text` with `mark` beside each character that may start or end a control token."""
        text = self._last.sub(lambda found: mark + found[0], text)
        return self._first.sub(lambda found: found[0] + mark, text)

    def split(self, text: str) -> list[str]:
        """Split a text at control tokens; the second, fourth, ... piece is a token's text."""
        pieces: list[str] = []
        done = 0
        for start, end in self._found(text):
            if start >= done:
                pieces += [text[done:start], text[start:end]]
                done = end
        return [*pieces, text[done:]]

    def encode(self, tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
        """Return the ids of `pieces` (from `split`), with a BOS first if the model wants one."""

        # Beside such a token llama.cpp drops blanks; of a piece by itself it would keep them.
        @cache
        def strips(control: str) -> tuple[bool, bool]:
            """Whether the tokenizer drops blanks before this control token, and blanks after it."""
            bare = [f"x{control}", f"{control}x"]
            spaced = [f"x \n{control}", f"{control} \nx"]
            left, right = (
                tokenizer.encode(one, special=True) == tokenizer.encode(other, special=True)
                for one, other in zip(bare, spaced, strict=True)
            )
            return left, right

        ids: list[int] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                ids.append(self._ids[piece])
                continue
            if at and strips(pieces[at - 1])[1]:
                piece = piece.lstrip(_BLANKS)
            if at + 1 < len(pieces) and strips(pieces[at + 1])[0]:
                piece = piece.rstrip(_BLANKS)
            ids += tokenizer.encode(piece, special=False) if piece else []
        # Many templates write it themselves, and it must not be there twice.
        bos = tokenizer.encode_prompt("", special=False)
        return ids if ids[: len(bos)] == bos else [*bos, *ids]

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of the longest control token's text at each place."""
        for match in self._begins.finditer(text):
            start = match.start()
            for size in self._sizes.get(text[start : start + self._head], ()):
                if text[start : start + size] in self._ids:
                    yield start, start + size
                    break


def conversation_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> list[int]:
    """Return the token ids of a conversation, rendered by the tokenizer's chat template.

    In messages, the text of a control token stays plain text; that of a token which llama.cpp calls
    user-defined, such as `<think>`, becomes this token. An assistant's message at the end is the
    beginning of the answer, unless it has tool calls or is the only message. Raises `ModelError` if
    the template cannot be rendered, `UsageError` if a text is not valid Unicode.
    """
    count = len(messages)
    while count > 1 and (last := messages[count - 1]).role == "assistant" and not last.tool_calls:
        count -= 1
    ids = _prompt_ids(tokenizer, messages[:count], tools)
    for one in messages[count:]:
        begun = ids_of_text(tokenizer, ids, one.content)
        ids = [*ids, *(tokenizer.encode(one.content) if begun is None else begun)]
    return ids


def _prompt_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Tool]
) -> list[int]:
    control = _control_tokens(tokenizer)
    texts = texts_of(messages, tools)
    # Most conversations have no such text, and are rendered once.
    if not any(map(control.could_come_of, texts)):
        return tokenizer.encode_prompt(render(tokenizer, messages, tools))
    mark = _unused(f"{tokenizer.chat_template}{tool_template(tokenizer)}{''.join(texts)}")

    def with_marks(marks: Callable[[str, str], str]) -> str:
        return render(tokenizer, messages, tools, change=lambda text: marks(text, mark))

    # With few marks, inside whole texts of control tokens, the template sees nearly what was said.
    # With one at every character that could begin or end such a text, it may also join, cut or
    # change contents. Where the two differ in control tokens, the first cannot be trusted.
    text = with_marks(control.marked)
    pieces, safe = control.split(text), control.split(with_marks(control.guarded))
    if pieces[1::2] != safe[1::2]:
        pieces = safe
    elif mark not in text:
        return tokenizer.encode_prompt(text)
    return control.encode(tokenizer, [piece.replace(mark, "") for piece in pieces])


def _unused(text: str) -> str:
    for mark in _MARKS:
        if mark not in text:
            return mark
    raise UsageError("The messages hold all of Unicode's noncharacters", hint="take them out")


def _any_of(characters: set[str], *, cased: bool = False) -> re.Pattern[str]:
    either = characters | {one.swapcase() for one in characters} if cased else characters
    return re.compile("|".join(map(re.escape, sorted(either))) or r"(?!)")


_control_tokens = once(lambda tokenizer: ControlTokens(tokenizer.special))
