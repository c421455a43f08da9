"""The formats in which models write tool calls, recognised by their chat templates."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.prompts.messages import Message, Tool, ToolCall


class ToolFormat(NamedTuple):
    """How a family of models writes tool calls.

    The text is `opening`, the calls joined by `between`, and `end`. Each call is `before_name`, the
    tool's name, `before_arguments`, the arguments as a JSON object, and `closing`. Without an
    `opening` the call is the whole answer, so there is at most one. A model has this format if its
    chat template contains all of `signs` and none of `others`.
    """

    signs: Sequence[str]
    opening: str
    before_name: str
    before_arguments: str
    closing: str
    between: str = ""
    end: str = ""
    others: Sequence[str] = ()

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Return the calls as a model with this format writes them; empty if there are none."""
        texts = [
            f"{self.before_name}{call.name}{self.before_arguments}{call.arguments}{self.closing}"
            for call in calls
        ]
        return f"{self.opening}{self.between.join(texts)}{self.end}" if calls else ""


_NAME, _ARGUMENTS, _PARAMETERS = '{"name": "', '", "arguments": ', '", "parameters": '
_MISTRAL = "[TOOL_CALLS]"

FORMATS = (
    # Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4. Some tag every argument instead.
    ToolFormat(
        signs=["<tool_call>"],
        others=["<function=", "<arg_key>"],
        opening="<tool_call>",
        before_name=f"\n{_NAME}",
        before_arguments=_ARGUMENTS,
        closing="}\n</tool_call>",
        between="\n<tool_call>",
    ),
    # Mistral since its eleventh tokenizer; before that a list, with a blank before it or without.
    ToolFormat([_MISTRAL, "[ARGS]"], _MISTRAL, "", "[ARGS]", "", between=_MISTRAL),
    ToolFormat([f"{_MISTRAL} ["], f"{_MISTRAL} [", _NAME, _ARGUMENTS, "}", ", ", "]"),
    ToolFormat([_MISTRAL], f"{_MISTRAL}[", _NAME, _ARGUMENTS, "}", ", ", "]"),
    # Llama 3.1, 3.2, 3.3.
    ToolFormat(['"parameters": ', "<|start_header_id|>"], "", _NAME, _PARAMETERS, "}"),
)
"""All known formats. A model has the first one that its chat template matches."""

BARE_END = r"\s{0,20}\}\s{0,20}(```\s{0,9})?"
"""Pattern of what follows the arguments of a bare call (see `bare_call`)."""


def bare_call(names: Sequence[str]) -> str:
    """Return a regular expression for the beginning of a bare call, up to its arguments.

    A bare call is an answer that is a call's JSON alone, without the opening that the model's
    format demands. `names` are the tools; the group `tool` matches the name that was called.
    """
    words = [r"(```(json)?)?", r"\{", r'("type"\s*:\s*"function"\s*,\s*)?"name"', ":"]
    words += [f'"(?P<tool>{"|".join(names)})"', ",", '"(arguments|parameters)"', ":"]
    return "".join(rf"\s*{word}" for word in words) + r"\s*"


MARKERS = ("[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>")
"""Texts in these formats that are control tokens in some vocabularies."""

_BARE = re.compile(r'(```(json)?)?\{("type":"function",)?"name":"[\w-]*(?P<behind>.*)')
_BARE_ARGUMENTS = ('","arguments":', '","parameters":')


def has_call(answer: str) -> bool:
    """Whether an answer has a tool call marker (`MARKERS`), or begins like the JSON of a call."""
    if any(marker in answer for marker in MARKERS):
        return True
    found = _BARE.match("".join(answer.split()))
    return found is not None and any(
        one.startswith(found["behind"]) or found["behind"].startswith(one)
        for one in _BARE_ARGUMENTS
    )


def tool_template(tokenizer: Tokenizer) -> str | None:
    """Return the template for tools if the model has one, else its chat template, else None."""
    return getattr(tokenizer, "tool_template", None) or tokenizer.chat_template


def tool_format(tokenizer: Tokenizer) -> ToolFormat:
    """Return the format in which the edge model writes tool calls.

    Raises `UsageError` if its chat template has no tools, or writes calls in an unknown format.
    """
    template = tool_template(tokenizer) or ""
    if "tools" not in template:
        raise UsageError(
            "The edge model's chat template does not support tools",
            hint="leave them out, or use a model that was trained to call tools",
            setting="tools",
        )
    for one in FORMATS:
        found = all(sign in template for sign in one.signs)
        if found and not any(sign in template for sign in one.others):
            return one
    raise UsageError(
        "The edge model's chat template writes tool calls in an unknown format",
        hint="use a model that writes them as Hermes, Qwen3, Llama 3 or Mistral do",
        setting="tools",
    )


def markers(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the tool call markers (`MARKERS`) that are control tokens here, by text."""
    return {text: token for token, text in tokenizer.special.items() if text in MARKERS}


def has_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
    """Whether a conversation has tools, calls of tools, or results of calls."""
    return bool(tools) or any(one.tool_calls or one.role == "tool" for one in messages)


def plain(
    format: ToolFormat, messages: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Message, ...]:
    """Return the conversation with tools, calls and results written out as plain text.

    This is for a cloud model that is given no tools: the system message describes them, and results
    are the user's text. Calls are written in `format`, the edge model's.
    """
    made: list[Message] = []
    if tools:
        first = next((one for one in messages if one.role == "system"), Message("system", ""))
        text = "\n\n".join(filter(None, [first.content, _described(format, tools)]))
        made.append(Message("system", text, first.local))
        messages = [one for one in messages if one is not first]
    results = False
    for one in messages:
        follows, results = results, one.role == "tool"
        if one.role == "tool":
            one = Message("user", f"<tool_response>\n{one.content}\n</tool_response>", one.local)
        elif one.tool_calls:
            # As the edge writes them, so that the cloud goes on in this format.
            text = f"{one.content}{format.written(one.tool_calls)}"
            one = Message("assistant", text, one.local)
        if follows and one.role == "user":
            before = made.pop()
            text = f"{before.content}\n{one.content}"
            one = Message("user", text, before.local or one.local)
        made.append(one)
    return tuple(made)


def _described(format: ToolFormat, tools: Sequence[Tool]) -> str:
    lines = [msgspec.json.encode(one).decode() for one in tools]
    example = format.written([ToolCall("", "NAME", "{...}")])
    return "\n".join(
        ["You may call these tools, one a line in JSON:", *lines, f"Write a call as {example}"]
    )


def require_calls(messages: Sequence[Message]) -> None:
    """Check the tool calls of a conversation.

    Raises `UsageError` for calls in a message that is not the assistant's, for a `tool_call_id`
    that is missing or misplaced, and for the result of a call that no earlier message made.
    """
    made: set[str] = set()
    for one in messages:
        if one.tool_calls and one.role != "assistant":
            raise _wrong("Only an assistant's message has tool_calls", "leave them out")
        if (one.tool_call_id is not None) != (one.role == "tool"):
            raise _wrong(
                "A message of the role tool has a tool_call_id, and no other has",
                "name the call that it is the result of",
            )
        if one.tool_call_id is not None and one.tool_call_id not in made:
            raise _wrong(
                f"There is no call {one.tool_call_id[:60]!r} before its result",
                "send the assistant's message with its tool_calls, too",
            )
        made.update(call.id for call in one.tool_calls)


def _wrong(what: str, hint: str) -> UsageError:
    return UsageError(what, hint=hint, setting="messages")
