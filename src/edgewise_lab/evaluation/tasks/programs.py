"""Checks of replies in a child process: by regular expression, JSON Schema, or running code."""

import atexit
import json
import os
import re
import secrets
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
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


class _Kept:
    """A child process, started at the first request, and anew once it ended or after a fork."""

    def __init__(self, target: str, failing: str, libraries: Sequence[str] = ()) -> None:
        self._target, self._failing, self._libraries = target, failing, libraries
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._parent = 0
        atexit.register(self._end)

    def ask(self, question: Question, *request: object) -> bool:
        """Whether the child replies `1`. Raises `UsageError` if it ends or takes too long."""
        with self._lock:
            if self._child is not None and self._parent != os.getpid():
                self._child.abandon()
                self._child = None
            if self._child is None:
                origins = [spec.origin for name in self._libraries if (spec := find_spec(name))]
                folders = dict.fromkeys(str(Path(one).parents[1]) for one in origins if one)
                made = partial(Child, seconds=_SECONDS, memory=_MEMORY, longest=1)
                self._child = made(self._target, folders=[_OWN, *folders])
                self._parent = os.getpid()
            try:
                return self._child.ask(json.dumps(request).encode()) == b"1"
            except ChildEnded as error:
                self._end()
                raise UsageError(
                    self._failing.format(question.id),
                    hint="write it whole, and without repetitions inside repetitions",
                ) from error

    def _end(self) -> None:
        if self._child is not None and self._parent == os.getpid():
            self._child.end()
        self._child = None


_searches = _Kept(
    "searching:search", "The regular expression of question {!r} takes too long for an answer"
)
_schemas = _Kept(
    "schemas:fits",
    "The schema of question {!r} takes too long for an answer, or refers to what is not in it",
    ("jsonschema", "referencing", "rpds", "attr", "jsonschema_specifications"),
)


def matches(question: Question, text: str) -> bool:
    """Whether the question's regex occurs in the text. Raises `UsageError` if it takes over 5 s."""
    return _searches.ask(question, question.answer, text)


def fits(question: Question, text: str, *, strict: bool = False) -> bool:
    """Whether the text contains JSON that fits the question's schema; `strict`: and nothing else.

    Raises `UsageError` if that takes over 5 s, or if the schema refers to another one elsewhere.
    """
    return _schemas.ask(question, json.loads(question.answer), text, strict)


def passes(question: Question, text: str, *, strict: bool = False) -> bool:
    """Whether the reply's code passes the question's tests, run after the prompt's code.

    It is enough if the last Python block passes, or all of them joined, or joined with the blocks
    that name no language; without a block the whole reply. `strict`: there must be exactly one
    block. Raises `UsageError` if the process that runs the code cannot start.
    """
    blocks = _python(text)
    if strict:
        return len(_blocks(text)) == 1 and _passes(question.prompt, blocks[0], question.answer)
    wider = [code for name, code in _blocks(text) if not name or code in blocks] or [text]
    tried = dict.fromkeys([*blocks[-1:], "\n".join(blocks or wider), "\n".join(wider)])
    return any(_passes(question.prompt, code, question.answer) for code in tried)


def _python(text: str) -> list[str]:
    """Return the code of the blocks marked as Python, else of those unmarked, else of all."""
    blocks = _blocks(text)
    named = [code for name, code in blocks if re.match(r"(?i)\W*py(?:thon)?[\d.]*\b", name)]
    return named or [code for name, code in blocks if not name] or [code for _, code in blocks]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return language and code of each fenced block; the text's end closes the last."""
    fence = r"^[ \t]*(```+|~~~+)([^\n`]*)\n(.*?)(?:^[ \t]*\1|\Z)"
    return [(name.strip(), dedent(code)) for _, name, code in re.findall(fence, text, re.M | re.S)]


@lru_cache(4096)  # lenient and strict grading both ask
def _passes(prompt: str, code: str, tests: str) -> bool:
    token = secrets.token_hex()
    with TemporaryDirectory(prefix="edgewise-", ignore_cleanup_errors=True) as folder:
        made = partial(Child, seconds=RUN_SECONDS, memory=RUN_MEMORY, longest=len(token))
        child = made("running:run", folders=[_OWN])
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
