"""Renders chat templates in Jinja's sandbox; runs in a child process that imports no Edgewise.

A request is JSON with `template`, `variables` and `longest`, the maximum length of the output in
characters. A reply is `{"text": ...}`, or `{"refused": ..., "reason": ...}`.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST_REASON = 200
"""Maximum length of a template's own error message that is passed on, in characters."""


class _TooLong(Exception):
    """The template's output is too long."""


def answer(request: bytes) -> bytes:
    """Render a template; return `{"text": ...}` or `{"refused": ..., "reason": ...}` as JSON.

    `request` is JSON with the arguments of `render` (`source` as `template`). `refused` is
    "memory", "length", or "template" for an error in the template, whose message is `reason`.
    """
    try:
        asked: dict[str, Any] = json.loads(request)
        text = render(asked["template"], asked["variables"], asked["longest"])
        return json.dumps({"text": text}, ensure_ascii=False).encode()
    except MemoryError:
        return _refusal("memory")
    except _TooLong:
        return _refusal("length")
    except Exception as error:
        # Cut first: splitting a huge text takes several times its memory.
        said = " ".join(str(error)[: 10 * LONGEST_REASON].split())[:LONGEST_REASON].strip()
        return _refusal("template", said or type(error).__name__)


def _refusal(kind: str, reason: str = "") -> bytes:
    return json.dumps(
        {"refused": kind, "reason": reason.encode(errors="replace").decode()}
    ).encode()


def render(source: str, variables: dict[str, Any], longest: int) -> str:
    """Return a template's output. Raises its error, and `_TooLong` beyond `longest` characters."""
    # Piece by piece, so that an output without end stops at its limit.
    pieces: list[str] = []
    left = longest
    for piece in compiled(source).generate(**variables):
        left -= len(piece)
        if left < 0:
            raise _TooLong
        pieces.append(piece)
    return "".join(pieces)


class _Generation(Extension):
    """The tag `{% generation %}`, which marks text to train on: renders its content."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@lru_cache(maxsize=8)
def compiled(source: str) -> Any:
    """Return the sandboxed Jinja template of `source`, with the helpers of transformers."""
    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    # It writes as much text as it is asked for, in one piece.
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment.from_string(source)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson`, as transformers defines it."""
    # Jinja's own also escapes HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


compiled("")  # imports what Jinja imports late, before memory is limited
