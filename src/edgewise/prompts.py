"""Chat templates. They come with downloaded models, so they run in Jinja's sandbox."""

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NoReturn

import msgspec
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgewise.edge.base import Tokenizer
from edgewise.errors import ModelError

MAX_TEMPLATE = 100_000
"""Longest chat template that is compiled, characters."""

_LONGEST_REASON = 200
_REFUSALS = (
    TemplateError,
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(msgspec.Struct, frozen=True):
    """What an answer follows: ids of the edge's vocabulary, and the messages they stand for.

    `messages` is None where the ids were made from no conversation.
    """

    ids: tuple[int, ...]
    messages: tuple[Message, ...] | None = None


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
            f"The model's chat template does not accept this conversation ({reason}); "
            "use --no-template to send the text as it is."
        ) from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    if len(source) > MAX_TEMPLATE:
        raise ModelError(
            f"The model's chat template has {len(source)} characters, more than {MAX_TEMPLATE}; "
            "use --no-template to send the text as it is."
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
