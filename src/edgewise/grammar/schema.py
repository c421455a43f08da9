"""Prepares JSON schemas for grammars: limits their work, and forbids keys that they do not list.

Such keys are forbidden where possible. Some schemas take llguidance minutes and gigabytes, so their
work is estimated beforehand.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from operator import add
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from edgewise.errors import UsageError
from edgewise.prompts.messages import require_shallow

MAX_SCHEMA = 1 << 17
"""Maximum length of an answer's schema, and of all tools' schemas together, in characters."""

MAX_KEYS = 1000
"""Maximum number of keys of one object in a schema: the work grows with their square."""

MAX_VALUES = 20_000
"""Maximum number of subschemas and values, at all depths. What a `$ref` that llguidance expands
stands for counts wherever it is used."""

MAX_MULTIPLE = 100_000
"""Maximum sum of all `multipleOf`, each without its point and final zeros (0.25 counts 25)."""

MAX_KEY_PATTERNS = 100
"""Maximum number of `patternProperties` of an object: each is compared with each."""

MAX_WAYS = 1 << 17
"""Maximum product of the estimated sizes of all patterns that one text has to match."""

MAX_REFS = 200
"""Maximum depth of nested subschemas; each `$ref` that llguidance expands adds its own depth."""

# Whitespace between the parts of JSON, as in llama.cpp: a blank, or a new line and its indent. If
# its length were unlimited, a small model could write blanks for ever.
_BLANKS = r"\x20|\x0A{1,2}[\x20\x09]{0,20}"

# Keywords that allow or require keys that an object's `properties` do not name.
_OPENING = frozenset(
    {"additionalProperties", "patternProperties", "propertyNames", "minProperties"}
    | {"unevaluatedProperties", "dependentRequired", "dependentSchemas"}
)

_LOOKING_AROUND = re.compile(r"\(\?<?[=!]")

# Assumed sizes, in states: of any format, of a bound of lengths, and of the shortest pattern.
_FORMAT, _LENGTH, _LEAST = 32, 4, 16
_APPLIED = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_KEYED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA = frozenset({"enum", "const", "default", "examples"})
# Keywords that restrict a value by themselves, not by applying subschemas to the same value.
_HELD = frozenset(
    {"type", "enum", "const", "pattern", "format", "minLength", "maxLength", "multipleOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}
    | {"items", "prefixItems", "additionalItems", "properties", "patternProperties", "required"}
    | {"maxProperties"}
    | _OPENING
)


# For each key of an object (`_ANY`: any key), the logarithm of the product of the sizes of all
# patterns that a text under that key has to match.
_Ways = dict[str, float]

_ANY = "*"


class SchemaBudget:
    """What a request's schemas, such as those of its tools, may still use before one is refused.

    `values` is the number of subschemas left, `states` the sum of `multipleOf` left (each without
    its point and final zeros), `characters` the length of JSON text left. They begin at
    `MAX_VALUES`, `MAX_MULTIPLE` and `MAX_SCHEMA`; `schema_text` lowers them. `unheld` collects the
    names of the keywords that `schema_text` removed from lenient schemas.
    """

    def __init__(self) -> None:
        self.values, self.states, self.characters = MAX_VALUES, MAX_MULTIPLE, MAX_SCHEMA
        self.unheld: set[str] = set()


def schema_text(
    schema: Mapping[str, object] | None, what: str, left: SchemaBudget, *, lenient: bool = False
) -> str:
    """Return a schema's JSON text for a grammar. The schema None stands for any JSON.

    What the schema uses is subtracted from `left`. Where possible, the text forbids keys that an
    object's `properties` do not list. Keywords that no grammar supports are ignored with `lenient`,
    else refused by the compiler. Raises `UsageError`, which calls the schema `what`, if it is not
    JSON, is nested too deeply, is too much work, or uses more than is left.
    """
    require_shallow(schema, what)
    found = dict(schema or {})
    if lenient:
        found = _without_look_around(found, left)
    weighing = _Weighing(found, what, left)
    # Raises for combined parts that are too much work, or that cannot be followed.
    weighing.ways(found, "", ())
    # To open objects a small model adds keys of its own.
    if not weighing.combines:
        found = _closed(found)
    found["x-guidance"] = {"whitespace_pattern": _BLANKS, "lenient": lenient}
    try:
        text = msgspec.json.encode(found).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise UsageError(f"{what} is not JSON", hint="give a JSON schema") from error
    left.characters -= len(text)
    if left.characters < 0:
        raise UsageError(f"{what} goes beyond {MAX_SCHEMA} characters", hint="shorten it")
    return text


def _without_look_around(schema: Any, left: SchemaBudget) -> Any:
    """Return the schema without patterns that use lookaround, which no grammar supports."""
    if isinstance(schema, list):
        return [_without_look_around(one, left) for one in cast(list[object], schema)]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = dict(cast(Mapping[str, Any], schema))
    pattern = made.get("pattern")
    if isinstance(pattern, str) and _LOOKING_AROUND.search(pattern):
        del made["pattern"]
        left.unheld.add("pattern")
    for key in made.keys() - _DATA:
        made[key] = _without_look_around(made[key], left)
    return made


def _closed(schema: Any) -> Any:
    """Return the schema with objects closed: unless they say otherwise, they have no other keys."""
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


class _Weighing:
    """Estimates a schema's work; `combines` becomes true if several parts restrict one value."""

    def __init__(self, root: object, what: str, left: SchemaBudget) -> None:
        self._root, self._what, self._left = root, what, left
        self.combines = False

    def ways(
        self, part: object, key: str, above: tuple[int, ...], *, combined: bool = False
    ) -> _Ways:
        """Return the `_Ways` of `part`, at `key` in `above` (the parents' Python ids)."""
        self._left.values -= 1
        if self._left.values < 0 or len(above) > MAX_REFS:
            raise self._refused("has combined parts that are too large when they are written out")
        if not isinstance(part, Mapping):
            return {}
        given = cast(Mapping[str, Any], part)
        for keys in (given, *(given.get(name) for name in _KEYED)):
            if isinstance(keys, Mapping) and len(cast(Mapping[str, Any], keys)) > MAX_KEYS:
                raise self._refused(f"has more than {MAX_KEYS} keys in one object")
        # Several parts say something of one value, so that one may name another's keys. Of these
        # llguidance expands all combinations, refs included.
        said = len(_list(given, "allOf")) + len(given.keys() & (_APPLIED - {"allOf"}))
        combined = combined or said > 1 or (said > 0 and bool(given.keys() & _HELD))
        self.combines = self.combines or combined
        above = (*above, id(given))

        def one_of(parts: Iterable[tuple[str, object]]) -> _Ways:
            found: _Ways = {}
            for name, one in parts:
                _add(found, self.ways(one, name, above, combined=combined), max)
            return found

        found = one_of(_inside(given, key))
        _add(found, {key: self._own(given)}, max)
        for one in _list(given, "allOf"):
            _add(found, one_of([(key, one)]), add)
        for name in ("anyOf", "oneOf"):
            _add(found, one_of((key, one) for one in _list(given, name)), add)
        if combined and "$ref" in given:
            target = self._target(given["$ref"])
            if id(target) not in above:
                _add(found, one_of([(key, target)]), add)
        # llguidance builds the product of the automata. Thirty patterns of one key compile in a
        # millisecond, but to find the tokens that may begin its value takes for ever, and the limit
        # of each step does not help.
        at_a_key = max((ways for name, ways in found.items() if name != _ANY), default=0.0)
        if found.get(_ANY, 0.0) + at_a_key > math.log(MAX_WAYS):
            raise self._refused("has too many patterns that one text has to fit")
        return found

    def _own(self, given: Mapping[str, Any]) -> float:
        ways = 0.0
        if isinstance(pattern := given.get("pattern"), str):
            ways += math.log(_LEAST + len(pattern))
        if "format" in given:
            ways += math.log(_FORMAT)
        if "minLength" in given or "maxLength" in given:
            ways += math.log(_LENGTH)
        if states := _states(given.get("multipleOf")):
            self._left.states -= states
            if self._left.states < 0:
                raise self._refused(f"has a multipleOf of more than {MAX_MULTIPLE}, or several")
            ways += math.log(states)
        if isinstance(keys := given.get("patternProperties"), Mapping):
            part = len(cast(Mapping[str, Any], keys)) / MAX_KEY_PATTERNS
            if part > 1:
                raise self._refused(f"has more than {MAX_KEY_PATTERNS} patternProperties")
            ways += math.log(MAX_WAYS) * part
        return ways

    def _target(self, ref: object) -> object:
        found: Any = self._root
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise self._refused("combines a $ref that is not a path, such as #/$defs/name")
        for name in ref.split("/")[1:]:
            key = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = {str(at): one for at, one in enumerate(cast(list[object], found))}
            found = cast(Any, found.get(key) if isinstance(found, Mapping) else None)
            if isinstance(found, Mapping) and "$id" in found:
                raise self._refused("combines a $ref into a part with an $id")
        return found

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"{self._what} {why}", hint="simplify it")


def _inside(given: Mapping[str, Any], key: str) -> Iterator[tuple[str, object]]:
    """Yield the subschemas nested in `given`, each with the key of the values that it describes."""
    for name, value in given.items():
        if name in _KEYED and isinstance(value, Mapping):
            pairs = cast(Mapping[str, object], value).items()
            yield from ((inner if name == "properties" else _ANY, one) for inner, one in pairs)
        elif name not in _APPLIED | _DATA:
            inner = key if "tems" in name else _ANY
            values = cast(list[object], value) if isinstance(value, list) else [value]
            yield from ((inner, one) for one in values)


def _add(found: _Ways, more: _Ways, how: Callable[[float, float], float]) -> None:
    for key, ways in more.items():
        found[key] = how(found.get(key, 0.0), ways)


def _list(given: Mapping[str, Any], name: str) -> list[object]:
    value = given.get(name)
    return cast(list[object], value) if isinstance(value, list) else []


def _states(multiple: object) -> int:
    if isinstance(multiple, float) and math.isfinite(multiple):
        multiple = Decimal(repr(multiple))
    if not isinstance(multiple, int | Decimal):
        return 0
    digits = Decimal(multiple).normalize().as_tuple().digits
    return int("".join(map(str, digits)))
