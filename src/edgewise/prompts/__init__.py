"""Turn messages into the edge model's prompt ids, by the chat template in the model's file."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import SupportsIndex, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import require_fitting
from edgewise.errors import UsageError
from edgewise.prompts.messages import (
    MAX_PROMPT,
    Message,
    Prompt,
    Prompted,
    Tool,
    ToolCall,
    require_text,
    texts_of,
)
from edgewise.prompts.special import conversation_ids
from edgewise.prompts.tool_formats import has_tools, plain, require_calls, tool_format

__all__ = [
    "MAX_PROMPT",
    "Message",
    "Prompt",
    "Prompted",
    "Tool",
    "ToolCall",
    "last_turn",
    "message_of",
    "prompt_from",
    "prompt_ids",
    "prompt_of",
    "require_text",
]

_BEGINNING = 200  # characters of a message by which it is found in a prompt
_FEWEST = 3  # ids that are enough to tell a message from other text


def prompt_from(
    tokenizer: Tokenizer,
    prompt: Prompted,
    *,
    context: int,
    system: str | None = None,
    tools: Sequence[Tool] = (),
) -> Prompt:
    """Build the edge model's prompt from text, messages, token ids or a `Prompt`.

    Text (as one user message) and messages go through the chat template together with `tools`. If
    there is no system message, one with the text `system` is put first. Token ids, and the ids of a
    `Prompt`, are not changed. Raises `UsageError` for an invalid or empty prompt, an unknown id, or
    ids with `tools`; `ContextOverflow` for text that is clearly longer than `context` tokens;
    `ModelError` if the template cannot be rendered.
    """
    if isinstance(prompt, str):
        require_text("The prompt", prompt)
        prompt = [Message("user", prompt)] if prompt.strip() else []
    given = prompt.ids if isinstance(prompt, Prompt) else list(prompt)
    if not given:
        raise UsageError("The prompt is empty", hint="give at least one character")
    messages = [message_of(item) for item in given if isinstance(item, Message | Mapping)]
    if len(messages) == len(given):
        if system and all(message.role != "system" for message in messages):
            messages = [Message("system", system), *messages]
        # Before a text that is far too long is rendered and tokenized, which takes seconds.
        require_fitting(tokenizer, texts_of(messages, tools), context)
        return prompt_of(tokenizer, messages, tools)
    if tools:
        raise UsageError(
            "Token ids cannot have tools", hint="give text or messages", setting="tools"
        )
    ids = _ids(given, tokenizer.size)
    return replace(prompt, ids=ids) if isinstance(prompt, Prompt) else Prompt(ids)


def message_of(given: Message | Mapping[str, object]) -> Message:
    """Return a checked `Message`, made from one or from a dict. Raises `UsageError` if invalid."""
    plain = dict(given) if isinstance(given, Mapping) else msgspec.to_builtins(given)
    try:
        message = msgspec.convert(plain, Message)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"This is not a message ({error})",
            hint="give a role (system, user, assistant or tool) and a content",
        ) from error
    for text in texts_of([message], ()):
        require_text("A message", text)
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


def prompt_of(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> Prompt:
    """Return the prompt of a conversation, rendered with the edge model's chat template.

    In the prompt's `messages`, tools and tool calls are written out as text. Raises `ModelError` if
    the template fails, `UsageError` for invalid tool calls or tools that it does not support.
    """
    ids = tuple(prompt_ids(tokenizer, messages, tools))
    if has_tools(messages, tools):
        messages = plain(tool_format(tokenizer), messages, tools)
    return Prompt(ids, tuple(messages))


def prompt_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> list[int]:
    """Return the token ids of a conversation, up to where the model is to go on writing.

    The assistant's message at the end, unless it has tool calls or stands alone, is the beginning
    of the answer. The text of a control token inside a message, such as `<|im_end|>`, stays plain
    text. Without a chat template the contents are joined by blank lines. Raises `ModelError` if the
    template cannot be rendered, and `UsageError` for invalid tool calls or a template that does not
    support tools.
    """
    if has_tools(messages, tools):
        tool_format(tokenizer)
        require_calls(messages)
    if tokenizer.chat_template is None:
        return tokenizer.encode_prompt("\n\n".join(m.content for m in messages), special=False)
    return conversation_ids(tokenizer, messages, tools)


def last_turn(tokenizer: Tokenizer, prompt: Prompt) -> int:
    """Return the approximate index in `prompt.ids` of the last user message; 0 if not found."""
    users = [one.content for one in prompt.messages or () if one.role == "user"]
    if not users:
        return 0
    beginning = users[-1].strip()[:_BEGINNING]
    # Its first and last ids may be others in the prompt, where text stands beside them.
    wanted = np.array(tokenizer.encode(beginning)[1:-1], np.int32)
    ids = np.array(prompt.ids, np.int32)
    if not _FEWEST <= len(wanted) <= len(ids):
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(wanted))
    found = np.flatnonzero((windows == wanted).all(axis=1))
    return max(0, int(found[-1]) - 1) if len(found) else 0
