"""What every part of a request is: nothing that is not known, and no number that is text."""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """Refuses other fields, and values of other types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _with_one_stranger(cls, data: object) -> object:
        """Of more keys than there are fields one that is none: all of a million cost seconds."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        if not isinstance(data, dict) or len(given := cast(dict[str, Any], data)) <= len(known):
            return cast(object, data)
        stranger = next(name for name in given if name not in known)
        kept = {name: given[name] for name in known if name in given}
        return {**kept, stranger: given[stranger]}
