"""Messages, tools and prompts as plain values, and functions over the texts in them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from edgewise.errors import ContextOverflow, UsageError

MAX_PROMPT = 4 << 20
"""Maximum length of a text from a user or from a chat template, in characters."""

MAX_DEPTH = 64
"""Maximum nesting depth of the arguments of tool calls, and of tools' parameters."""

Change = Callable[[str], str]  # applied to each text before a chat template sees it
Role = Literal["system", "user", "assistant", "tool"]


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool that an answer may call; `parameters` is a JSON schema of an object."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    description: str = ""
    parameters: Mapping[str, object] = {}


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that an answer made; `arguments` is an object's JSON text, or its beginning."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a conversation.

    A conversation with a `local` message is sent only to trusted clouds (setting `trust`). An
    assistant's message may have `tool_calls`. The result of a call is a message with the role
    "tool", whose `tool_call_id` is the id of that call.
    """

    role: Role
    content: str
    local: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Prompt(msgspec.Struct, frozen=True):
    """The prompt of an answer: token ids of the edge model, and the messages behind these ids.

    `messages` is None if the ids were not made from a conversation; `local` then marks the whole
    prompt as `Message.local` marks a message. `owner` is the name of the API key that the prompt
    came with. The record of what was sent to clouds counts prompts of one owner as one conversation
    if their messages are equal up to the first user message.
    """

    ids: tuple[int, ...]
    messages: tuple[Message, ...] | None = None
    local: bool = False
    owner: str = ""

    @property
    def local_only(self) -> bool:
        """Whether prompt and answer may be sent to trusted clouds only (setting `trust`)."""
        return self.local or any(message.local for message in self.messages or ())


Prompted = str | Prompt | Sequence[Message | Mapping[str, object]] | Sequence[int]
"""What callers may give as a prompt: a user's text, messages (dicts with the fields of `Message`),
or token ids of the edge model."""


def require_text(what: str, text: str) -> None:
    """Raise `UsageError` for invalid Unicode, `ContextOverflow` beyond `MAX_PROMPT` characters.

    `what` names the text in the error.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not valid UTF-8", hint="convert it first") from error
    if len(text) > MAX_PROMPT:
        raise ContextOverflow(f"{what} has more than {MAX_PROMPT} characters", hint="shorten it")


def conversation(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    change: Change,
    *,
    parts: Collection[str] = (),
) -> dict[str, object]:
    """Return the variables that a chat template is rendered with: `messages` and `tools`.

    Both have the form that transformers passes to templates (None if there are no tools), and hold
    what the function `change` returns for each text. For roles in `parts`, the content of a message
    is a list of text parts instead of a string.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    made: dict[str, Any] = {"messages": [_turn(one, names, change) for one in messages]}
    for turn in made["messages"]:
        if turn["role"] in parts:
            turn["content"] = [{"type": "text", "text": turn["content"]}]
    # As transformers gives it, none too: a template may ask whether it is.
    made["tools"] = None
    if tools:
        functions = [
            {
                "name": change(tool.name),
                "description": change(tool.description),
                "parameters": _changed(tool.parameters, change),
            }
            for tool in tools
        ]
        made["tools"] = [{"type": "function", "function": one} for one in functions]
    return made


def joined(messages: Sequence[Message]) -> list[Message]:
    """Merge adjacent messages of one role, except tool results; a blank line joins the contents."""
    groups: list[list[Message]] = []
    for one in messages:
        if groups and groups[-1][0].role == one.role != "tool":
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        replace(
            group[0],
            content="\n\n".join(one.content for one in group if one.content),
            tool_calls=tuple(call for one in group for call in one.tool_calls),
            local=any(one.local for one in group),
        )
        for group in groups
    ]


def alternating(messages: Sequence[Message], *, system: bool) -> list[Message]:
    """Return a conversation in which user and assistant alternate, as some templates require.

    With `system`, system messages at the start stay; all other system messages become the user's.
    If the assistant is first, an empty user message goes before. Neighbours of one role are merged.
    """
    leading = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    kept = [*messages[: leading if system else 0]]
    said = [
        replace(one, role="user") if one.role == "system" else one for one in messages[len(kept) :]
    ]
    if said and said[0].role == "assistant":
        said = [Message("user", ""), *said]
    return joined([*kept, *said])


def texts_of(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """Return every text of a conversation and its tools, in the order that a template gets them."""
    texts: list[str] = []
    conversation(messages, tools, lambda text: texts.append(text) or text)
    return texts


def _arguments(call: ToolCall) -> object:
    """Return a call's arguments for a template: the object, or the text if it is no valid one."""
    try:
        found = msgspec.json.decode(call.arguments or "null", type=dict[str, Any] | None)
        require_shallow(found, "The arguments")
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, UsageError):
        return call.arguments
    return found or {}


def require_shallow(value: object, what: str) -> None:
    """Raise `UsageError` if `value` has over `MAX_DEPTH` nested levels; errors call it `what`."""
    # Level by level: a recursion could itself be too deep.
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping | list):
                inner += one.values() if isinstance(one, Mapping) else one
        if not inner:
            return
        level = inner
    where = what[:1].lower() + what[1:]
    raise UsageError(f"More than {MAX_DEPTH} levels are nested in {where}", hint="flatten it")


def _turn(message: Message, names: Mapping[str, str], change: Change) -> dict[str, object]:
    turn: dict[str, object] = {"role": message.role, "content": change(message.content)}
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, change) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = change(message.tool_call_id)
        turn["name"] = change(names.get(message.tool_call_id, ""))
    return turn


def _call(call: ToolCall, change: Change) -> dict[str, object]:
    arguments = _changed(_arguments(call), change)
    function = {"name": change(call.name), "arguments": arguments}
    return {"id": change(call.id), "type": "function", "function": function}


def _changed(value: Any, change: Change) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _changed(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_changed(inner, change) for inner in value]
    return value
