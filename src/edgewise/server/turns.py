"""Turns of other dialects as a chat's: what chat templates expect."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from edgewise.prompts import Message
from edgewise.server.errors import ApiError
from edgewise.server.form_schemas import (
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    FunctionTool,
    JsonSchemaFormat,
    JsonSchemaText,
    MessageToolCall,
    NamedTool,
)


def call_of(id: str, name: str, arguments: str) -> MessageToolCall:
    """A call that an answer made, in a chat's terms."""
    function = FunctionCall.model_construct(name=name, arguments=arguments)
    return MessageToolCall.model_construct(id=id, function=function)


def function_tool(
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    *,
    strict: bool | None,
) -> FunctionTool:
    """A tool in a chat's terms."""
    function = FunctionDefinition.model_construct(
        name=name, description=description, parameters=parameters, strict=strict
    )
    return FunctionTool.model_construct(type="function", function=function)


def named_tool(name: str) -> NamedTool:
    """The tool that has to be called, in a chat's terms."""
    return NamedTool(type="function", function=FunctionName(name=name))


def json_format(name: str, schema: Mapping[str, Any]) -> JsonSchemaFormat:
    """JSON that a schema allows, in a chat's terms."""
    text = JsonSchemaText.model_construct(name=name, schema_=schema)
    return JsonSchemaFormat.model_construct(type="json_schema", json_schema=text)


def joined(turns: Sequence[Message]) -> list[Message]:
    """The same conversation with one system message at its beginning, and one turn at a time.

    Agents send several of both, and most templates take neither: turns of one role that follow
    each other become one, with a blank line between, and so do an answer's text and its calls.
    Raises `ApiError` where there is no turn.
    """
    if not turns:
        raise ApiError(400, "The conversation has no message that can be read; send one.")
    found: list[list[Message]] = []
    for turn in turns:
        if found and _mixes(found[-1][0], turn):
            found[-1].append(turn)
        else:
            found.append([turn])
    return [one[0] if len(one) == 1 else _mixed(one) for one in found]


def _mixes(one: Message, other: Message) -> bool:
    return one.role == other.role != "tool"


def _mixed(turns: Sequence[Message]) -> Message:
    """One turn, which is local where any of them is."""
    return replace(
        turns[0],
        content="\n\n".join(turn.content for turn in turns if turn.content),
        tool_calls=tuple(call for turn in turns for call in turn.tool_calls),
        local=any(turn.local for turn in turns),
    )
