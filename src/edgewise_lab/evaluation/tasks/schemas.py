"""The inside of the process that holds replies against a user's JSON Schema, which has patterns."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry


def fits(request: bytes) -> bytes:
    """`1` if one of the texts is JSON that fits the schema, else `0`; the request is JSON.

    Unless `strict`, JSON may stand between words. A schema's references stay within it.
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
    """What the text is as JSON; else what its fences hold, or where there are none, its words."""
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
            # Nothing inside of what is broken.
            at = max(error.pos, begun.end())
        except ValueError:
            at = begun.end()
        else:
            yield value


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
