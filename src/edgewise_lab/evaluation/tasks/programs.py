"""Checks in a child process: regular expressions, JSON schemas, and code that is run."""

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
"""Timeout of a search, and its memory in bytes."""

RUN_SECONDS, RUN_MEMORY = 10.0, 512 << 20
"""The same of a reply's code with its tests."""

_OWN = str(Path(__file__).parent)
_LIBRARIES = ("jsonschema", "referencing", "rpds", "attr", "jsonschema_specifications")


class _Kept:
    """A child that is started when it is needed, and again after a timeout."""

    def __init__(self, target: str, libraries: Sequence[str] = ()) -> None:
        self._target, self._libraries = target, libraries
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._parent = 0
        atexit.register(self._end)

    def ask(self, *request: object) -> bool:
        """Whether the reply is `1`. Raises `ChildEnded`."""
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
    """Whether the question's regular expression occurs in the text. Raises `UsageError`."""
    try:
        return _searches.ask(question.answer, text)
    except ChildEnded as error:
        raise UsageError(
            f"The regular expression of question {question.id!r} takes too long for an answer",
            hint="write it without repetitions inside repetitions",
        ) from error


def fits(question: Question, text: str, *, strict: bool = False) -> bool:
    """Whether the text holds JSON that fits the question's schema; strictly, it is nothing else.

    Raises `UsageError`.
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

    The code is the last fenced block, or all of them, one after another; without a fence it is the
    whole reply. Strictly there is one block. The blocks of the prompt run first, so what a reply
    leaves out of them is at hand.
    """
    blocks = _blocks(text)
    if strict:
        return len(blocks) == 1 and _passes(question.prompt, blocks[0], question.answer)
    tried = dict.fromkeys([*blocks[-1:], "\n".join(blocks)]) if blocks else [text]
    return any(_passes(question.prompt, code, question.answer) for code in tried)


def _blocks(text: str) -> list[str]:
    """The code of each fence; one that is not closed ends with the text."""
    fence = r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:^[ \t]*\1|\Z)"
    return [dedent(block) for _, block in re.findall(fence, text, re.MULTILINE | re.DOTALL)]


@lru_cache(4096)  # both readings ask
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
            request = [token, folder, "\n".join(_blocks(prompt)), code, tests]
            return child.ask(json.dumps(request).encode()) == token.encode()
        except ChildEnded as ended:
            if ended.why == "start":
                raise UsageError(
                    "The process that runs a reply's code did not start", hint="try again"
                ) from ended
            return False
        finally:
            child.end()
