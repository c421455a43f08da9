"""The response format of a request: JSON of a schema, tool calls, or either of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.grammar.compiled import Grammar, compiled
from edgewise.grammar.schema import SchemaBudget, schema_text
from edgewise.prompts import Tool
from edgewise.prompts.messages import require_shallow
from edgewise.prompts.tool_formats import BARE_END, ToolFormat, bare_call, markers, tool_format

# OpenAI's own limit.
MAX_TOOLS = 128
MAX_TOOLS_TEXT = 1 << 20
"""Most bytes of all tools' parameters as JSON. `MAX_SCHEMA` limits those of callable tools, too."""

_Tools = Annotated[tuple[Tool, ...], msgspec.Meta(max_length=MAX_TOOLS)]


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer may consist of: JSON of a schema, any text, calls of tools.

    With `schema` the answer is JSON that this JSON schema allows; with None, any text. With `tools`
    it may be tool calls instead: several if `parallel` is set, else one. It must be tool
    calls if `required` is set, or if `only` names the one tool that may be called. The prompt
    describes the tools, too.

    For the tools named in `lenient`, schema keywords that no grammar supports are ignored. For
    other tools, and in `schema`, they are refused.
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
    """Return the response format of a request; None for plain text.

    With `json_schema` the answer is JSON that it allows; with `tools` it may be tool calls instead.
    `tools` may be dicts with the fields of `Tool`. `tool_choice` is "auto", "none", "required" or
    the name of the one tool to call. `only` names that tool instead, even one that is itself called
    "auto" or the like. With `parallel_tool_calls` there may be several calls. Raises
    `UsageError` for invalid or too many tools, and for the name of a tool that is not among them.
    The schema is checked later, by `grammar_of`.
    """
    if json_schema is None and not tools:
        return None
    try:
        given = [dict(one) if isinstance(one, Mapping) else one for one in tools]
        found = msgspec.convert(msgspec.to_builtins(given), _Tools)
        size = len(msgspec.json.encode([tool.parameters for tool in found]))
    except (msgspec.ValidationError, TypeError, UnicodeEncodeError, RecursionError) as error:
        raise _wrong(
            f"The tools are invalid ({error})",
            f"give at most {MAX_TOOLS}, each with a name of 1 to 64 letters, digits, _ or -, a "
            "description and a JSON schema as parameters",
        ) from error
    if size > MAX_TOOLS_TEXT:
        raise _wrong(f"The tools have more than {MAX_TOOLS_TEXT} bytes", "send fewer")
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
    """Compile a response format for a tokenizer's vocabulary.

    Raises `UsageError` if a schema is invalid, unsupported or too complex, or if llguidance is not
    installed. With tools it is also raised if the model's chat template has no known format of
    calls, or one that cannot be combined with the format's `schema`.
    """
    left = SchemaBudget()
    try:
        if not format.tools:
            text = schema_text(format.schema, "The schema", left)
            return compiled(tokenizer, f"start: %json {text}\n", {})
        style, special = tool_format(tokenizer), markers(tokenizer)
        shown = {token: text.encode() for text, token in special.items()}
        lark = _calling(format, style, special, left)
        called = [tool.name for tool in format.tools if format.only in (None, tool.name)]
        rules = {
            f"arguments_{number}": f"The schema of the tool {name!r}"
            for number, name in enumerate(called)
        }
        return compiled(tokenizer, lark, shown, unheld=left.unheld, rules=rules)
    except UsageError as error:
        error.setting = error.setting or ("tools" if format.tools else "json_schema")
        raise


def _require_valid(format: ResponseFormat) -> None:
    names = [tool.name for tool in format.tools]
    if len(set(names)) < len(names):
        raise _wrong("Two tools have one name", "rename one of them")
    if format.only is not None and format.only not in names:
        raise UsageError(
            f"There is no tool {format.only[:80]!r}",
            hint="choose one of the given tools",
            setting="tool_choice",
        )
    for tool in format.tools:
        require_shallow(tool.parameters, f"The parameters of the tool {tool.name!r}")
        if tool.parameters.get("type", "object") != "object":
            raise _wrong(
                f"The parameters of the tool {tool.name!r} are not an object",
                "give a schema whose type is object",
            )


def _wrong(what: str, hint: str) -> UsageError:
    return UsageError(what, hint=hint, setting="tools")


def _calling(
    format: ResponseFormat, style: ToolFormat, special: Mapping[str, int], left: SchemaBudget
) -> str:
    """Return the grammar of tool calls, and of the text that may come before them or instead."""
    if format.schema is not None and not style.opening:
        raise UsageError(
            "This model writes tool calls as JSON, so tools and a JSON format cannot be combined",
            hint="ask for one of them",
            setting="json_schema",
        )
    called = [tool for tool in format.tools if format.only in (None, tool.name)]
    rules: list[str] = []
    for number, tool in enumerate(called):
        schema = {**(tool.parameters or {"properties": {}}), "type": "object"}
        what = f"The parameters of the tool {tool.name!r}"
        text = schema_text(schema, what, left, lenient=tool.name in format.lenient)
        head = _terms(f"{style.before_name}{tool.name}{style.before_arguments}", special)
        closing = _terms(style.closing, special)
        rules.append(f"call_{number}: {head} arguments_{number} {closing}")
        rules.append(f"arguments_{number}: %json {text}")
    any_call = " | ".join(f"call_{number}" for number in range(len(called)))
    more = f" ({_terms(style.between, special)} call)*" if format.parallel and style.between else ""
    end = f" {_terms(style.end, special)}" if style.end else ""
    lines = [*_start(format, style, special), f"calls: call{more}{end}", f"call: {any_call}"]
    return "\n".join(["%llguidance {}", *lines, *rules, ""])


def _start(format: ResponseFormat, style: ToolFormat, special: Mapping[str, int]) -> Sequence[str]:
    opening = _terms(style.opening, special)
    if format.required or format.only is not None:
        return [f"start: {opening} calls"]
    if format.schema is not None:
        content = schema_text(format.schema, "The schema", SchemaBudget())
        return [f"start: content | {opening} calls", f"content: %json {content}"]
    # Small models often leave out opening and end, or write the JSON in a Markdown fence.
    rules = [*_bare_calls(format.tools), rf"BARE_END: /{BARE_END}/"]
    if not style.opening:
        return ["start: TEXT | bare", *rules]
    if any(marker in style.opening for marker in special):
        # No text makes a control token.
        return [f"start: TEXT | TEXT {opening} calls | bare", *rules]
    return ["start: TEXT | opening calls | bare", f"opening[lazy]: TEXT {opening}", *rules]


def _bare_calls(tools: Sequence[Tool]) -> Iterator[str]:
    """Yield the rules of bare calls, and of text that does not begin like one."""
    yield f"bare: {' | '.join(f'bare_{number}' for number in range(len(tools)))}"
    for number, tool in enumerate(tools):
        yield f"bare_{number}: BARE_{number} arguments_{number} BARE_END"
        yield f"BARE_{number}: /{bare_call([tool.name])}/"
    yield rf"TEXT: /(.|\n)*/ & ~/{bare_call([tool.name for tool in tools])}(.|\n)*/"


def _terms(text: str, special: Mapping[str, int]) -> str:
    if not special:
        return msgspec.json.encode(text).decode() if text else ""
    parts = re.split(f"({'|'.join(map(re.escape, special))})", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else msgspec.json.encode(part).decode()
        for part in parts
        if part
    )
