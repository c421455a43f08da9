"""The key that lets a device into its cloud."""

import os
import re

from edgewise.errors import UsageError
from edgewise.settings import Settings

# As shells allow it; so a key given in its place is not repeated on a terminal as a rule.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def cloud_key(settings: Settings) -> str | None:
    """The key that the settings give, or that the variable holds which they name.

    Raises `UsageError` where it holds none, and for what can be no bearer token.
    """
    key, setting = settings.cloud_key, "cloud_key"
    if settings.cloud_key_env is not None:
        key, setting = _held_by(settings.cloud_key_env), "cloud_key_env"
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            "The cloud's key has blanks, line breaks or characters that no key has",
            hint="copy it again",
            setting=setting,
        )
    return key


def _held_by(variable: str) -> str:
    if not _VARIABLE.fullmatch(variable):
        raise UsageError(
            "What should hold the cloud's key is no variable's name",
            hint="give a name such as FIREWORKS_API_KEY, and not the key itself",
            setting="cloud_key_env",
        )
    key = os.environ.get(variable)
    if not key:
        state = "is not set" if key is None else "is empty"
        raise UsageError(
            f"The variable {variable!r}, which should hold the cloud's key, {state}",
            hint="set it to the key, or name another",
            setting="cloud_key_env",
        )
    return key
