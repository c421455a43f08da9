"""Fields of requests that change nothing here: taken all the same, and named in the reply."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

IGNORED_HEADER = "X-Edgewise-Ignored"
"""Names the fields of a request that changed nothing."""


MOST = 50
"""Names in it, so that it stays a header."""


class _Mark:
    """Marks a field."""


HARMLESS = _Mark()
"""A field with this changes no answer: a hint, a label, a wish about what is not kept here."""

Harmless = Annotated[SkipJsonSchema[Any], HARMLESS]
"""The same, whatever it holds; the API's description does not name it."""


def ignored(body: BaseModel) -> list[str]:
    """The names of a request's fields that were given and change nothing.

    One that asks for nothing (null, false, empty) is no wish that was ignored.
    """
    return [
        field.alias or name
        for name, field in type(body).model_fields.items()
        if HARMLESS in field.metadata and getattr(body, name)
    ]


def said(names: Sequence[str]) -> dict[str, str] | None:
    """The header that names ignored fields, the first of very many; None where there are none."""
    return {IGNORED_HEADER: ", ".join(names[:MOST])} if names else None


def shown(name: str) -> str:
    """What a client called something, as a header can hold it."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in name[:60])


def refused(why: str) -> BeforeValidator:
    """For a field that is known and cannot be honoured; `why` says what to do instead."""

    def check(given: object) -> object:
        if given is not None:
            raise PydanticCustomError("refused", "{why}", {"why": why})
        return given

    return BeforeValidator(check)
