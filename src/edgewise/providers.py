"""Providers of hosted models: what a model's name stands for, and which key is theirs."""

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class Provider(NamedTuple):
    """A provider of hosted models that have well-known names."""

    url: str
    engine: str
    key: str
    models: str


PROVIDERS = (
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
"""URL, engine, variable of the key, and how the names of the models begin."""

_HOSTED = re.compile(r"(?:(?:openai|anthropic|google)[:/])?(?P<model>[\w.-]+)")


def hosted(address: str) -> tuple[str, str] | None:
    """URL and model of a hosted model's name, such as gpt-5-mini or openai/gpt-5-mini."""
    is_file = address.lower().endswith(".gguf") or Path(address).exists()
    if is_file or (named := _HOSTED.fullmatch(address)) is None:
        return None
    begins = (one.url for one in PROVIDERS if re.match(one.models, named["model"], re.IGNORECASE))
    url = next(begins, None)
    return None if url is None else (url, named["model"])


def provider_at(url: str) -> Provider | None:
    """The provider whose host a URL leads to, over TLS."""
    try:
        parts = urlsplit(url)
        wanted = (parts.scheme, parts.hostname, parts.port or 443)
    except ValueError:
        return None
    known = ((one, urlsplit(one.url)) for one in PROVIDERS)
    return next((one for one, at in known if wanted == (at.scheme, at.hostname, 443)), None)
