"""Checks of replies in a child process: by regular expression, JSON Schema, or running code."""

import atexit
import json
import os
import re
import secrets
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from edgewise.errors import UsageError
from edgewise.sandbox import Child, ChildEnded
from edgewise_lab.evaluation.tasks.base import Question

_SECONDS, _MEMORY = 5.0, 1 << 30
"""Limits of a search or schema check: seconds, and memory in bytes."""

RUN_SECONDS, RUN_MEMORY = 10.0, 512 << 20
"""Limits of running a reply's code with its tests: seconds, and memory in bytes."""

_OWN = str(Path(__file__).parent)
_LIBRARIES = ("jsonschema", "referencing", "rpds", "attr", "jsonschema_specifications")


class _Kept:
    """A child process, started at the first request, and anew once it ended or after a fork."""

    def __init__(self, target: str, libraries: Sequence[str] = ()) -> None:
        self._target, self._libraries = target, libraries
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._parent = 0
        atexit.register(self._end)

    def ask(self, *request: object) -> bool:
        """Whether the child replies `1`. Raises `ChildEnded` if it ends or takes too long."""
        with self._lock:
            if self._child is not None and self._parent != os.getpid():
                self._child.abandon()
                self._child = None
            if self._child is None:
                origins = [spec.origin for name in self._libraries if (spec := find_spec(name))]
                folders = dict.fromkeys(str(Path(one).parents[1]) for one in origins if one)
                self._child = Child(
                    self._target,
                    seconds=_SECONDS,
                    memory=_MEMORY,
                    longest=1,
                    folders=[_OWN, *folders],
                )
                self._parent = os.getpid()
            try:
                return self._child.ask(json.dumps(request).encode()) == b"1"
            except ChildEnded:
                self._end()
                raise

    def _end(self) -> None:
        if self._child is not None and self._parent == os.getpid():
            self._child.end()
        self._child = None


_searches, _schemas = _Kept("searching:search"), _Kept("schemas:fits", _LIBRARIES)


def matches(question: Question, text: str) -> bool:
    """Whether the question's pattern occurs in the text. Raises `UsageError` if it is too slow."""
    try:
        return _searches.ask(question.answer, text)
    except ChildEnded as error:
        raise UsageError(
            f"The regular expression of question {question.id!r} takes too long for an answer",
            hint="write it without repetitions inside repetitions",
        ) from error


def fits(question: Question, text: str, *, strict: bool = False) -> bool:
    """Whether the text contains JSON that fits the question's schema; `strict`: and nothing else.

    Raises `UsageError` if the check takes too long, or the schema refers to something outside.
    """
    try:
        return _schemas.ask(json.loads(question.answer), text, strict)
    except ChildEnded as error:
        raise UsageError(
            f"The schema of question {question.id!r} takes too long for an answer, or refers to "
            "what is not in it",
            hint="write it without repetitions inside repetitions, and whole",
        ) from error


def passes(question: Question, text: str, *, strict: bool = False) -> bool:
    """Whether the reply's code passes the question's tests.

    One of these must pass: the last fenced Python block; all Python blocks joined; those and the
    blocks without a language joined. If no block is marked as Python, the blocks without a language
    count as Python, else all; without a fence the whole reply does. With `strict` there must be
    exactly one block. The prompt's code runs first. Raises `UsageError` if the child cannot start.
    """
    blocks = _python(text)
    if strict:
        return len(_blocks(text)) == 1 and _passes(question.prompt, blocks[0], question.answer)
    wider = [code for name, code in _blocks(text) if not name or code in blocks] or [text]
    tried = dict.fromkeys([*blocks[-1:], "\n".join(blocks or wider), "\n".join(wider)])
    return any(_passes(question.prompt, code, question.answer) for code in tried)


def _python(text: str) -> list[str]:
    """Return the code of the blocks that `passes` takes for Python."""
    blocks = _blocks(text)
    named = [code for name, code in blocks if re.match(r"(?i)\W*py(?:thon)?[\d.]*\b", name)]
    return named or [code for name, code in blocks if not name] or [code for _, code in blocks]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return language and code of each fenced block; one that is not closed ends with the text."""
    fence = r"^[ \t]*(```+|~~~+)([^\n`]*)\n(.*?)(?:^[ \t]*\1|\Z)"
    return [(name.strip(), dedent(code)) for _, name, code in re.findall(fence, text, re.M | re.S)]


@lru_cache(4096)  # lenient and strict grading both ask
def _passes(prompt: str, code: str, tests: str) -> bool:
    token = secrets.token_hex()
    with TemporaryDirectory(prefix="edgewise-", ignore_cleanup_errors=True) as folder:
        child = Child(
            "running:run",
            seconds=RUN_SECONDS,
            memory=RUN_MEMORY,
            longest=len(token),
            folders=[_OWN],
        )
        try:
            request = [token, folder, "\n".join(_python(prompt)), code, tests]
            return child.ask(json.dumps(request).encode()) == token.encode()
        except ChildEnded as ended:
            if ended.why == "start":
                raise UsageError(
                    "The process that runs a reply's code did not start", hint="try again"
                ) from ended
            return False
        finally:
            child.end()
