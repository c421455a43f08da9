"""JSON schemas as grammars take them: bounded, and closed where nothing says that they are open."""

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from edgewise.errors import UsageError
from edgewise.grammar.combined import MAX_VALUES, SchemaBudget, require_light
from edgewise.prompts.conversation import inner, require_shallow

MAX_SCHEMA = 1 << 17
"""Longest JSON text of an answer's schema, and of all tools together, bytes."""

MAX_KEYS = 1000
"""Most keys of one object in a schema: what they come to grows with their square."""

_BLANKS = r"\x20|\x0A{1,2}[\x20\x09]{0,20}"
"""Whitespace between the parts of JSON, as in llama.cpp: a blank, or a new line and its indent.
If it were unbounded, a small model could write blanks for ever."""

_OPENING = frozenset(
    {"additionalProperties", "patternProperties", "propertyNames", "minProperties"}
    | {"unevaluatedProperties", "dependentRequired", "dependentSchemas"}
)
"""Keywords by which an object may have, or need, keys that it does not name."""

_VALUES = frozenset({"const", "enum"})

_LOOKING_AROUND = re.compile(r"\(\?<?[=!]")

_KEYED = frozenset({"properties", "required"} | _OPENING)


def schema_text(
    schema: Mapping[str, object] | None, what: str, left: SchemaBudget, *, lenient: bool = False
) -> str:
    """The JSON text of a schema, for a grammar. `left` is the work that it may still make.

    With `lenient`, keywords that the library does not support are ignored. Raises `UsageError`.
    """
    _require_small(schema, what)
    require_light(schema, what, left)
    found = dict(schema or {})
    if not _combines(found):
        found = cast(dict[str, object], _closed(found))
    found["x-guidance"] = {"whitespace_pattern": _BLANKS, "lenient": lenient}
    try:
        text = msgspec.json.encode(found).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise UsageError(f"{what} is not JSON", hint="give a JSON schema") from error
    if len(text) > MAX_SCHEMA:
        raise UsageError(f"{what} has more than {MAX_SCHEMA} characters", hint="shorten it")
    return text


def _require_small(schema: Mapping[str, object] | None, what: str) -> None:
    require_shallow(schema, what)
    left: list[object] = [schema]
    count = 0
    while left:
        value = left.pop()
        count += 1
        if isinstance(value, Mapping) and len(cast(Mapping[str, object], value)) > MAX_KEYS:
            raise UsageError(f"{what} has more than {MAX_KEYS} keys in one object", hint="split it")
        if count > MAX_VALUES:
            raise UsageError(f"{what} has more than {MAX_VALUES} values", hint="shorten it")
        left += inner(value)


def _combines(schema: Mapping[str, object]) -> bool:
    """Whether keys that one part names may be another part's, too."""
    left: list[object] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            keys = cast(Mapping[str, object], value).keys()
            if "allOf" in keys or ({"anyOf", "oneOf", "$ref"} & keys and _KEYED & keys):
                return True
        left += inner(value)
    return False


def without_look_around(schema: object) -> object:
    """A schema without the patterns that look around, which no grammar can hold a text to."""
    if isinstance(schema, Mapping):
        return {
            key: value if key in _VALUES else without_look_around(value)
            for key, value in cast(Mapping[str, object], schema).items()
            if not (key == "pattern" and isinstance(value, str) and _LOOKING_AROUND.search(value))
        }
    if isinstance(schema, list | tuple):
        return [without_look_around(one) for one in cast(list[object], schema)]
    return schema


def _closed(schema: object) -> object:
    """The same, in which objects have the keys that they name and no others, unless they say so.

    All that it allows the schema does. Else a small model goes on with keys of its own.
    """
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = dict(cast(Mapping[str, Any], schema))
    for key in ("properties", "$defs", "definitions"):
        if isinstance(made.get(key), Mapping):
            made[key] = {name: _closed(one) for name, one in made[key].items()}
    for key in ("items", "additionalProperties"):
        made |= {key: _closed(made[key])} if key in made else {}
    for key in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(made.get(key), list):
            made[key] = [_closed(one) for one in made[key]]
    if isinstance(made.get("properties"), Mapping) and not _OPENING & made.keys():
        required = made.get("required", [])
        if isinstance(required, list) and made["properties"].keys() >= set(map(str, required)):
            made["additionalProperties"] = False
    return made
