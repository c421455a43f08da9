"""Providers of hosted models: which model names are theirs, and which variable holds their key."""

import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit


class Provider(NamedTuple):
    """A provider of hosted models that have well-known names.

    `url` is where its API is, `engine` the cloud engine that speaks this API, `key` the environment
    variable of its API key, and `models` a regular expression for how its models' names begin.
    """

    url: str
    engine: str
    key: str
    models: str


PROVIDERS = (
    # gpt-oss is a model with open weights, which other servers have.
    Provider(
        "https://api.openai.com/v1", "openai", "OPENAI_API_KEY", r"(?:gpt-(?!oss)|o\d|chatgpt-)"
    ),
    Provider("https://api.anthropic.com/v1", "anthropic", "ANTHROPIC_API_KEY", "claude-"),
    Provider(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "openai",
        "GEMINI_API_KEY",
        "gemini-",
    ),
)
"""The providers that are known by the names of their models."""

_HOSTED = re.compile(r"(?:(?:openai|anthropic|google)[:/])?(?P<model>[\w.-]+)")


def hosted(address: str) -> tuple[str, str] | None:
    """Return the API's URL and the model's own name if `address` names a hosted model, else None.

    Such names are gpt-5-mini and openai/gpt-5-mini. An existing path or *.gguf is not one.
    """
    is_file = address.lower().endswith(".gguf") or os.path.exists(address)
    if is_file or (named := _HOSTED.fullmatch(address)) is None:
        return None
    begins = (one.url for one in PROVIDERS if re.match(one.models, named["model"], re.IGNORECASE))
    url = next(begins, None)
    return None if url is None else (url, named["model"])


def api_url(address: str) -> str:
    """Return the API's URL if `address` names a hosted model, else `address`."""
    return address if (known := hosted(address)) is None else known[0]


def provider_at(url: str) -> Provider | None:
    """Return the provider at whose host a URL points, over TLS; None for any other URL."""
    try:
        parts = urlsplit(url)
        wanted = (parts.scheme, parts.hostname, parts.port or 443)
    # A port that is no number, or a bracket without its other half.
    except ValueError:
        return None
    known = ((one, urlsplit(one.url)) for one in PROVIDERS)
    return next((one for one, at in known if wanted == (at.scheme, at.hostname, 443)), None)
