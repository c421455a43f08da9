"""A conversation as chat templates read it: plain values, and the texts in them."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec

from edgewise.errors import UsageError
from edgewise.prompts.messages import Message, Tool, ToolCall

MAX_DEPTH = 64
"""How deep the arguments of calls and the parameters of tools may nest."""

Change = Callable[[str], str]


def conversation(
    messages: Sequence[Message], tools: Sequence[Tool], change: Change
) -> dict[str, object]:
    """The variables `messages` and, where there are any, `tools`.

    `change` is applied to every text of a participant. Raises `UsageError` for invalid calls.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    made: dict[str, object] = {"messages": [_turn(message, names, change) for message in messages]}
    if tools:
        made["tools"] = [{"type": "function", "function": _function(one, change)} for one in tools]
    return made


def said(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """Every text of a conversation that somebody said. Raises as `conversation`."""
    texts: list[str] = []

    def kept(text: str) -> str:
        texts.append(text)
        return text

    conversation(messages, tools, kept)
    return texts


def arguments_of(call: ToolCall) -> Mapping[str, object]:
    """What a call was given. Raises `UsageError` for anything but a JSON object."""
    try:
        found: object = msgspec.json.decode(call.arguments.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise _no_object(call) from error
    if not isinstance(found, dict):
        raise _no_object(call)
    require_shallow(found, f"The arguments of the call {call.name[:60]!r}")
    return cast(Mapping[str, object], found)


def require_shallow(value: object, what: str) -> None:
    """Raises `UsageError` for values nested deeper than `MAX_DEPTH`."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [value for one in level for value in inner(one)]
        if not level:
            return
    where = what[:1].lower() + what[1:]
    raise UsageError(f"More than {MAX_DEPTH} levels are nested in {where}", hint="flatten it")


def inner(value: object) -> Sequence[object]:
    """The values of an object or an array; none of anything else."""
    if isinstance(value, Mapping):
        return list(cast(Mapping[str, object], value).values())
    return cast(list[object], value) if isinstance(value, list) else []


def _no_object(call: ToolCall) -> UsageError:
    return UsageError(
        f"The arguments of the call {call.name[:60]!r} are not a JSON object",
        hint="send them as they came",
        setting="messages",
    )


def _turn(message: Message, names: Mapping[str, str], change: Change) -> dict[str, object]:
    turn: dict[str, object] = {"role": message.role, "content": change(message.content)}
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, change) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = change(message.tool_call_id)
        turn["name"] = change(names.get(message.tool_call_id, ""))
    return turn


def _call(call: ToolCall, change: Change) -> dict[str, object]:
    arguments = _changed(arguments_of(call), change)
    function = {"name": change(call.name), "arguments": arguments}
    return {"id": change(call.id), "type": "function", "function": function}


def _function(tool: Tool, change: Change) -> dict[str, object]:
    return {
        "name": change(tool.name),
        "description": change(tool.description),
        "parameters": _changed(tool.parameters, change),
    }


def _changed(value: object, change: Change) -> object:
    """The same with every text in it changed; keys, too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, object], value).items()
        return {change(key): _changed(inner, change) for key, inner in pairs}
    if isinstance(value, list):
        return [_changed(inner, change) for inner in cast(list[object], value)]
    return value
