"""Fields of requests that change nothing here: taken all the same, and named in the reply."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError

IGNORED_HEADER = "X-Edgewise-Ignored"
"""Names the fields of a request that changed nothing."""


class _Mark:
    """Marks a field."""


HARMLESS = _Mark()
"""A field with this changes no answer: a hint, a label, a wish about what is not kept here."""

Harmless = Annotated[Any, HARMLESS]
"""The same, whatever it holds."""


def ignored(body: BaseModel) -> list[str]:
    """The names of a request's fields that were given and change nothing.

    One that asks for nothing (null, false, empty) is no wish that was ignored.
    """
    return [
        field.alias or name
        for name, field in type(body).model_fields.items()
        if HARMLESS in field.metadata and getattr(body, name)
    ]


def refused(why: str) -> BeforeValidator:
    """For a field that is known and cannot be honoured; `why` says what to do instead."""

    def check(given: object) -> object:
        if given is not None:
            raise PydanticCustomError("refused", "{why}", {"why": why})
        return given

    return BeforeValidator(check)
