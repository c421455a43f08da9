"""Check JSON against a schema in a child process, which can be ended if a pattern is too slow."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry


def fits(request: bytes) -> bytes:
    """Return b"1" if a text is or contains JSON that fits a schema, else b"0".

    `request` is JSON: [schema, text, whether the whole text must be JSON].
    """
    schema, text, strict = json.loads(request)
    kind = validator_for(schema, default=Draft202012Validator)
    validator = kind(schema, registry=Registry())
    # A reply that is nested too deeply to be read fits nothing.
    with suppress(RecursionError):
        if any(validator.is_valid(one) for one in _values(text, strict=strict)):
            return b"1"
    return b"0"


def _values(text: str, *, strict: bool) -> Iterator[Any]:
    """Yield the JSON values that are the text, its fenced blocks or, without these, parts of it."""
    decoder = json.JSONDecoder(parse_constant=_refused)
    fenced = re.findall(r"^[ \t]*```.*\n((?:.*\n)*?)[ \t]*(?:```|\Z)", text + "\n", re.MULTILINE)
    for whole in (text,) if strict else (text, *fenced):
        with suppress(ValueError):
            yield decoder.decode(whole)
    at = len(text) if strict or fenced else 0
    while begun := re.compile(r"[{\[]").search(text, at):
        try:
            value, at = decoder.raw_decode(text, begun.start())
        except json.JSONDecodeError as error:
            # Values inside a broken one do not count.
            at = max(error.pos, begun.end())
        except ValueError:
            at = begun.end()
        else:
            yield value


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
