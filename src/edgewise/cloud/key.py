"""The key that lets a device into its cloud."""

from edgewise.errors import UsageError
from edgewise.settings import Settings


def cloud_key(settings: Settings) -> str | None:
    """The key that the settings give. Raises `UsageError` if it cannot be a bearer token."""
    key = settings.cloud_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            "The cloud's key has blanks, line breaks or characters that no key has",
            hint="copy it again",
            setting="cloud_key",
        )
    return key
