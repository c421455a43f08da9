"""Chat templates. They come with downloaded models, so they run in Jinja's sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import index
from typing import Any, Literal, NoReturn, SupportsIndex, cast

import msgspec
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgewise.edge.base import Tokenizer
from edgewise.errors import ModelError, UsageError

MAX_TEMPLATE = 100_000
"""Longest chat template that is compiled, characters."""

MAX_PROMPT = 4 << 20
"""Longest text that is taken from a user, characters."""

_LONGEST_REASON = 200
_UNTEMPLATED = "send the text as it is"
_REFUSALS = (
    TemplateError,
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(msgspec.Struct, frozen=True):
    """What an answer follows: ids of the edge's vocabulary, and the messages they stand for.

    `messages` is None where the ids were made from no conversation.
    """

    ids: tuple[int, ...]
    messages: tuple[Message, ...] | None = None


Prompted = str | Prompt | Sequence[Message | Mapping[str, str]] | Sequence[int]
"""A user's text, a conversation (dicts have `role` and `content`), or ids of the edge's."""


def require_text(what: str, text: str) -> None:
    """Raises `UsageError` for text too long, or with what no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is no valid UTF-8", hint="convert it first") from error
    if len(text) > MAX_PROMPT:
        raise UsageError(f"{what} has more than {MAX_PROMPT} characters", hint="shorten it")


def prompt_from(tokenizer: Tokenizer, asked: Prompted, *, system: str | None = None) -> Prompt:
    """What the edge model is given for `asked`.

    Text and messages go through the chat template, behind `system` where they bring no system
    message of their own; ids go as they are. Raises `UsageError`.
    """
    if isinstance(asked, str):
        require_text("The prompt", asked)
        asked = [Message("user", asked)] if asked.strip() else []
    given = asked.ids if isinstance(asked, Prompt) else list(asked)
    if not given:
        raise UsageError("The prompt is empty", hint="give at least one character")
    messages = [_message(item) for item in given if isinstance(item, Message | Mapping)]
    if len(messages) == len(given):
        if system and all(message.role != "system" for message in messages):
            messages = [Message("system", system), *messages]
        return prompt_of(tokenizer, messages)
    ids = _ids(given, tokenizer.size)
    return Prompt(ids, asked.messages if isinstance(asked, Prompt) else None)


def _message(given: Message | Mapping[str, str]) -> Message:
    """Raises `UsageError` for what is none."""
    plain = dict(given) if isinstance(given, Mapping) else msgspec.to_builtins(given)
    try:
        message = msgspec.convert(plain, Message)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"This is no message ({error})",
            hint="give a role (system, user or assistant) and a content",
        ) from error
    require_text("A message", message.content)
    return message


def _ids(given: Sequence[object], size: int) -> tuple[int, ...]:
    try:
        ids = tuple(index(cast(SupportsIndex, item)) for item in given)
    except TypeError as error:
        raise UsageError(
            f"A prompt is text, messages or token ids, not {type(given[0]).__name__}."
        ) from error
    for token in ids:
        if not 0 <= token < size:
            raise UsageError(f"The edge model has no token {token}, only those below {size}.")
    return ids


def prompt_of(tokenizer: Tokenizer, messages: Sequence[Message]) -> Prompt:
    """A conversation with the edge model's template; raises `ModelError` as `prompt_ids`."""
    return Prompt(tuple(prompt_ids(tokenizer, messages)), tuple(messages))


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Ids of a conversation with the edge model's template, ready for the assistant's turn.

    A model without a template gets the contents joined by blank lines. Raises `ModelError` for
    a template that cannot be rendered.
    """
    if tokenizer.chat_template is None:
        return tokenizer.encode_prompt("\n\n".join(m.content for m in messages), special=False)
    return tokenizer.encode_prompt(render(tokenizer, messages))


def render(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """The text that a tokenizer's own chat template makes of `messages`."""
    assert tokenizer.chat_template is not None
    try:
        return _compiled(tokenizer.chat_template).render(
            messages=[{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=True,
            bos_token=tokenizer.special_text("bos"),
            eos_token=tokenizer.special_text("eos"),
        )
    except _REFUSALS as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
        raise ModelError(
            f"The model's chat template does not accept this conversation ({reason})",
            hint=_UNTEMPLATED,
            setting="no_template",
        ) from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    if len(source) > MAX_TEMPLATE:
        raise ModelError(
            f"The model's chat template has {len(source)} characters, more than {MAX_TEMPLATE}",
            hint=_UNTEMPLATED,
            setting="no_template",
        )
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
