"""The response format that a request asks for: JSON of a schema, calls of tools, or either."""

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.grammar.compiled import Grammar, compiled
from edgewise.grammar.schema import (
    MAX_SCHEMA,
    SchemaBudget,
    schema_text,
    without_look_around,
)
from edgewise.prompts import Tool
from edgewise.prompts.messages import require_shallow
from edgewise.prompts.tool_formats import ToolFormat, markers, tool_format

MAX_TOOLS = 128
MAX_TOOLS_TEXT = 1 << 20
"""Longest JSON text of all tools' parameters, bytes; of those that may be called `MAX_SCHEMA`."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """With `schema` the answer is JSON that the schema allows; without, any text.

    With `tools` the answer may be calls of tools instead. It must be where a call is `required`, or
    where `only` one tool may be called. It may have several calls if `parallel`. The prompt shows
    the tools as well. For the tools in `lenient`, keywords of their schemas that no grammar
    supports are ignored; elsewhere they are refused.
    """

    schema: Mapping[str, object] | None = None
    tools: tuple[Tool, ...] = ()
    required: bool = False
    only: str | None = None
    parallel: bool = True
    lenient: frozenset[str] = frozenset()


def response_format_from(
    json_schema: Mapping[str, object] | None = None,
    tools: Sequence[Tool | Mapping[str, object]] = (),
    tool_choice: str = "auto",
    parallel_tool_calls: bool = True,
    *,
    only: str | None = None,
) -> ResponseFormat | None:
    """The response format of a request, None for plain text. Tools may be dicts.

    `tool_choice` is "auto", "none", "required" or the name of a tool; `only` is such a name,
    whatever it is. Raises `UsageError`.
    """
    if json_schema is None and not tools:
        return None
    try:
        plain = [dict(one) if isinstance(one, Mapping) else one for one in tools]
        found = msgspec.convert(plain, tuple[Tool, ...], from_attributes=True)
    except msgspec.ValidationError as error:
        raise _wrong(
            f"The tools are invalid ({error})", "give each a name, a description and parameters"
        ) from error
    format = ResponseFormat(
        schema=json_schema,
        tools=() if tool_choice == "none" else found,
        required=tool_choice == "required",
        only=only or (None if tool_choice in ("auto", "none", "required") else tool_choice),
        parallel=parallel_tool_calls,
    )
    _require_valid(format)
    return format if format.tools or json_schema is not None else None


def grammar_of(tokenizer: Tokenizer, format: ResponseFormat) -> Grammar:
    """The grammar of a response format. Raises `UsageError` for one that is refused."""
    try:
        if not format.tools:
            return compiled(tokenizer, f"start: %json {_of_text(format)}\n", {})
        style, special = tool_format(tokenizer), markers(tokenizer)
        shown = {token: text.encode() for text, token in special.items()}
        format, unheld = _without_look_around(format)
        return compiled(tokenizer, _calling(format, style, special), shown, unheld=unheld)
    except UsageError as error:
        error.setting = error.setting or ("tools" if format.tools else "json_schema")
        raise


def _require_valid(format: ResponseFormat) -> None:
    names = [tool.name for tool in format.tools]
    if len(names) > MAX_TOOLS:
        raise _wrong(f"There are {len(names)} tools, more than {MAX_TOOLS}", "send fewer")
    for name in names:
        if not _NAME.fullmatch(name):
            raise _wrong(
                f"A tool cannot be called {name[:80]!r}", "take 1 to 64 letters, digits, _ or -"
            )
    if len(set(names)) < len(names):
        raise _wrong("Two tools have one name", "rename one of them")
    if format.only is not None and format.only not in names:
        raise UsageError(
            f"There is no tool {format.only[:80]!r}",
            hint="choose one of those that are given",
            setting="tool_choice",
        )
    _require_short(format.tools)
    for tool in format.tools:
        require_shallow(tool.parameters, f"The parameters of the tool {tool.name!r}")
        if tool.parameters.get("type", "object") != "object":
            raise _wrong(
                f"The parameters of the tool {tool.name!r} are not an object",
                "give a schema whose type is object",
            )


def _require_short(tools: Sequence[Tool]) -> None:
    try:
        size = sum(len(msgspec.json.encode(tool.parameters)) for tool in tools)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise _wrong("The parameters of a tool are not JSON", "give a JSON schema") from error
    if size > MAX_TOOLS_TEXT:
        raise _wrong(f"The tools have more than {MAX_TOOLS_TEXT} characters", "send fewer")


def _of_text(format: ResponseFormat) -> str:
    return schema_text(format.schema, "The schema", SchemaBudget())


def _wrong(what: str, hint: str) -> UsageError:
    return UsageError(what, hint=hint, setting="tools")


def _without_look_around(format: ResponseFormat) -> tuple[ResponseFormat, Sequence[str]]:
    """The form with lenient tools that a grammar can be made of, and what they lost for it."""
    found = [
        replace(tool, parameters=without_look_around(tool.parameters))
        if tool.name in format.lenient
        else tool
        for tool in format.tools
    ]
    lost = ("pattern",) if found != list(format.tools) else ()
    return replace(format, tools=tuple(found)), lost


def _calling(format: ResponseFormat, style: ToolFormat, special: Mapping[str, int]) -> str:
    """The grammar of calls, and of the text that may come in their place.

    Text before a call is free up to the opening, from which on nothing but a call fits. Behind
    calls there is nothing.
    """
    if format.schema is not None and not style.opening:
        raise UsageError(
            "This model's calls are JSON as well, so an answer cannot be either",
            hint="ask for tools or for JSON, not for both",
            setting="json_schema",
        )
    called = [tool for tool in format.tools if format.only in (None, tool.name)]
    left = SchemaBudget()
    rules = [
        _call(number, tool, style, special, left, lenient=tool.name in format.lenient)
        for number, tool in enumerate(called)
    ]
    if sum(map(len, rules)) > MAX_SCHEMA:
        raise _wrong(f"The tools have more than {MAX_SCHEMA} characters", "send fewer")
    any_call = " | ".join(f"call_{number}" for number in range(len(called)))
    more = f" ({_terms(style.between, special)} call)*" if format.parallel and style.between else ""
    end = f" {_terms(style.end, special)}" if style.end else ""
    must = format.required or format.only is not None
    return "\n".join(
        [
            "%llguidance {}",
            *_start(format, style, special, must=must),
            f"calls: call{more}{end}",
            f"call: {any_call}",
            *rules,
            "",
        ]
    )


def _start(
    format: ResponseFormat, style: ToolFormat, special: Mapping[str, int], *, must: bool
) -> Sequence[str]:
    opening = _terms(style.opening, special)
    if must:
        return [f"start: {opening} calls"]
    if format.schema is not None:
        return [f"start: content | {opening} calls", f"content: %json {_of_text(format)}"]
    if not style.opening:
        return ["start: (TEXT | calls)?", r"TEXT: /[^{](.|\n)*/"]
    text = r"TEXT: /(.|\n)*/"
    if any(marker in style.opening for marker in special):
        # No text makes a control token.
        return [f"start: TEXT | TEXT {opening} calls", text]
    return ["start: TEXT | opening calls", f"opening[lazy]: TEXT {opening}", text]


def _call(
    number: int,
    tool: Tool,
    style: ToolFormat,
    special: Mapping[str, int],
    left: SchemaBudget,
    *,
    lenient: bool,
) -> str:
    schema = {**(tool.parameters or {"properties": {}}), "type": "object"}
    what = f"The parameters of the tool {tool.name!r}"
    head = _terms(f"{style.before_name}{tool.name}{style.before_arguments}", special)
    arguments = f"%json {schema_text(schema, what, left, lenient=lenient)}"
    closing = _terms(style.closing, special)
    return f"call_{number}: {head} arguments_{number} {closing}\narguments_{number}: {arguments}"


def _terms(text: str, special: Mapping[str, int]) -> str:
    if not special:
        return msgspec.json.encode(text).decode() if text else ""
    parts = re.split(f"({'|'.join(map(re.escape, special))})", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else msgspec.json.encode(part).decode()
        for part in parts
        if part
    )
