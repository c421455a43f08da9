"""From a request's fields to the form of its answer, and from an answer to the calls in it."""

from typing import Any

from edgewise.grammar.calls import CallBegun, Part, Said
from edgewise.grammar.form import AnswerForm, require_form
from edgewise.prompts import Message, Tool, ToolCall
from edgewise.server.errors import ApiError
from edgewise.server.form_schemas import (
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    MessageToolCall,
    NamedTool,
)
from edgewise.server.schemas import ChatMessage, ChatRequest


def form_of(body: ChatRequest) -> AnswerForm | None:
    """None for plain text. Raises `ApiError`, or `UsageError` for tools that are none."""
    choice, tools = body.tool_choice, body.tools or []
    if not tools and choice not in (None, "none"):
        raise ApiError(400, "tool_choice needs tools.", param="tool_choice")
    if choice == "none":
        tools = []
    schema: dict[str, Any] | None = None
    if isinstance(body.response_format, JsonObjectFormat):
        schema = {"type": "object"}
    elif isinstance(body.response_format, JsonSchemaFormat):
        schema = body.response_format.json_schema.schema_
    if schema is None and not tools:
        return None
    form = AnswerForm(
        schema=schema,
        tools=tuple(map(_tool, tools)),
        required=choice == "required",
        only=choice.function.name if isinstance(choice, NamedTool) else None,
        parallel=body.parallel_tool_calls is not False,
        lenient=frozenset(tool.function.name for tool in tools if not tool.function.strict),
    )
    require_form(form)
    return form


def message_of(turn: ChatMessage) -> Message:
    """A turn of the conversation."""
    return Message(
        "system" if turn.role == "developer" else turn.role,
        turn.text,
        local=turn.edgewise is not None,
        tool_calls=tuple(map(_call, turn.tool_calls or ())),
        tool_call_id=turn.tool_call_id,
    )


def delta_of(part: Part) -> dict[str, Any]:
    """A part of an answer as a stream tells it."""
    if isinstance(part, Said):
        return {"content": part.text}
    if isinstance(part, CallBegun):
        function = {"name": part.name, "arguments": ""}
        told = {"index": part.index, "id": part.id, "type": "function", "function": function}
    else:
        told = {"index": part.index, "function": {"arguments": part.text}}
    return {"tool_calls": [told]}


def told_call(call: ToolCall) -> dict[str, Any]:
    """A whole call as an answer tells it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool(given: FunctionTool) -> Tool:
    function = given.function
    return Tool(function.name, function.description or "", function.parameters or {})


def _call(given: MessageToolCall) -> ToolCall:
    return ToolCall(given.id, given.function.name, given.function.arguments)
