"""What replies to `POST /v1/completions` have in common, whoever serves them."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from edgewise.engines.base import uncached
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable

COMPLETIONS = "/v1/completions"

_FILTERED = frozenset(["content_filter"])
_CALLS = frozenset(["tool_calls", "tool_call", "function_call"])
_BROKEN = frozenset(["abort", "error"])

_T = TypeVar("_T")


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Meter(msgspec.Struct):
    """`usage`, as an engine counts; what it does not tell is None."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens that came from the cache."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    @property
    def computed(self) -> int | None:
        """Prompt tokens that did not."""
        return uncached(self.prompt_tokens, self.cached)


def only(choices: Sequence[_T], dialect: str) -> _T:
    """The one choice that was asked for; raises `CloudProtocolError`."""
    if len(choices) != 1:
        raise CloudProtocolError(f"{dialect} sent {len(choices)} choices for one prompt.")
    return choices[0]


def has_ended(reason: str | None, dialect: str) -> bool:
    """Whether the model ended the text, by a reply's reason; otherwise it wrote all it was to.

    Raises a `CloudError` where what came is no continuation that can be used.
    """
    if reason in _FILTERED:
        raise CloudRejected(f"{dialect}'s content filter ended the reply")
    if reason in _CALLS:
        raise CloudRejected(f"{dialect} called a tool where words were asked for")
    if reason in _BROKEN:
        raise CloudUnavailable(f"{dialect} broke the reply off", hint="try again shortly")
    return reason == "stop"
