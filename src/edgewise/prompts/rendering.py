"""Chat templates come with downloaded models: they run in Jinja's sandbox, in another process.

The sandbox keeps a template from what is not its own; the process bounds its time, memory and
output, and is killed where it goes beyond. One is kept for the next rendering; more are started
where renderings would wait for each other.
"""

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from weakref import WeakSet

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import ModelError, UsageError
from edgewise.prompts.conversation import Change, conversation
from edgewise.prompts.messages import MAX_PROMPT, Message, Tool
from edgewise.sandbox import Child, ChildEnded, Why

MAX_TEMPLATE = 100_000
"""Longest chat template that is compiled, characters."""

SECONDS = 2.0
"""Longest that one rendering may take, compiling included."""

MEMORY = 512 << 20
"""Most memory of a process that renders, bytes. Idle it takes 21 MB."""

WORKERS = 4
"""Most processes that render at a time: as many as a server has slots."""

_LIBRARIES = ("jinja2", "markupsafe")
_PATIENCE = 0.02
"""Seconds to wait for a busy process before another is started, which takes longer."""


class _Request(msgspec.Struct):
    template: str
    variables: Mapping[str, object]
    longest: int


class _Reply(msgspec.Struct):
    text: str | None = None
    refused: Literal["template", "memory", "length"] = "template"
    reason: str = ""


class Renderer:
    """Renders chat templates within limits, for any number of threads."""

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        memory: int = MEMORY,
        longest: int = MAX_PROMPT,
        workers: int = WORKERS,
    ) -> None:
        """`seconds` and `memory` (bytes) a rendering, `longest` text in characters."""
        self._seconds, self._memory, self._longest = seconds, memory, longest
        self._most = workers
        self._reset()
        _renderers.add(self)

    def start(self) -> None:
        """Begin to start a process, where there is none, so that the first rendering has one."""
        with self._changed:
            if not self._all:
                self._idle.append(self._new())

    def render(self, template: str, variables: Mapping[str, object]) -> str:
        """The text of a template. Raises `ModelError`; `UsageError` for what is no text."""
        request = _encoded(template, variables, self._longest)
        process = self._take()
        try:
            reply = msgspec.json.decode(process.ask(request), type=_Reply)
        except (ChildEnded, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._end(process)
            why: Why = error.why if isinstance(error, ChildEnded) else "process"
            raise self._past(why) from error
        except BaseException:
            self._end(process)  # in the middle of a reply
            raise
        if reply.text is None and reply.refused == "memory":
            # What is left of it may not do for the next.
            self._end(process)
        else:
            self._give_back(process)
        if reply.text is not None:
            return reply.text
        raise _refusal(reply.reason) if reply.refused == "template" else self._past(reply.refused)

    def close(self) -> None:
        """End every process. The next rendering starts one."""
        with self._changed:
            for process in self._all:
                process.kill()
            idle, self._idle, self._all = self._idle, [], set()
            self._changed.notify_all()
        for process in idle:
            process.end()

    def abandon(self) -> None:
        """Begin anew in a process that was forked from this one's."""
        for process in self._all:
            process.abandon()
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._all: set[Child] = set()
        self._idle: list[Child] = []

    def _take(self) -> Child:
        with self._changed:
            if self._all and not self._idle:
                self._changed.wait(_PATIENCE)
            while not self._idle and len(self._all) >= self._most:
                self._changed.wait()
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                self._all.discard(process)  # somebody else ended it, and no template did
                process.end()
            return self._new()

    def _new(self) -> Child:
        try:
            process = Child(
                f"{Path(__file__).with_name('template.py')}:answer",
                seconds=self._seconds,
                memory=self._memory,
                longest=6 * self._longest + (1 << 16),  # in JSON a character is six bytes at most
                folders=_folders(),
            )
        except OSError as error:
            raise self._past("start") from error
        self._all.add(process)
        return process

    def _give_back(self, process: Child) -> None:
        with self._changed:
            kept = process in self._all
            if kept:
                self._idle.append(process)
            self._changed.notify()
        if not kept:  # closed meanwhile
            process.end()

    def _end(self, process: Child) -> None:
        process.end()
        with self._changed:
            self._all.discard(process)
            self._changed.notify()

    def _past(self, limit: Why | Literal["memory", "length"]) -> ModelError:
        said = {
            "start": "could not be rendered: the process for it did not start",
            "time": f"takes more than {self._seconds:g} s for this conversation",
            "memory": f"takes more than {self._memory >> 20} MB of memory for this conversation",
            "length": f"makes more than {self._longest} characters of this conversation",
            "process": "ended the process that renders it",
        }
        return _unrendered(said[limit])


def _refusal(reason: str) -> ModelError:
    return _unrendered(f"does not accept this conversation ({reason})")


def _unrendered(what: str) -> ModelError:
    return ModelError(
        f"The model's chat template {what}",
        hint="send the text as it is",
        setting="no_template",
    )


def _encoded(template: str, variables: Mapping[str, object], longest: int) -> bytes:
    if len(template) > MAX_TEMPLATE:
        raise _unrendered(f"has {len(template)} characters, more than {MAX_TEMPLATE}")
    try:
        template.encode()
    except UnicodeEncodeError as error:
        raise _unrendered("is not valid UTF-8") from error
    try:
        return msgspec.json.encode(_Request(template, variables, longest))
    except UnicodeEncodeError as error:
        raise UsageError("A message is not valid UTF-8", hint="convert it first") from error


def _folders() -> list[str]:
    """Where the process finds what it imports."""
    found = [find_spec(name) for name in _LIBRARIES]
    origins = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins))


_renderers: WeakSet[Renderer] = WeakSet()


def _forked() -> None:
    for renderer in _renderers:
        renderer.abandon()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_forked)

_RENDERER = Renderer()
atexit.register(_RENDERER.close)


def prepare() -> None:
    """Begin to start what renders templates; it is ready when a model has been loaded.

    Where that fails, whatever has to be rendered says so.
    """
    with suppress(ModelError):
        _RENDERER.start()


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    change: Change = str,
) -> str:
    """The text that a tokenizer's own chat template makes of `messages`, and of `tools`.

    All that somebody said is put through `change` first. Raises `ModelError` where the template
    refuses it, or goes beyond its limits; `UsageError` for calls that are none.
    """
    assert tokenizer.chat_template is not None
    variables = {
        **conversation(messages, tools, change),
        "add_generation_prompt": True,
        "bos_token": tokenizer.special_text("bos"),
        "eos_token": tokenizer.special_text("eos"),
    }
    return _RENDERER.render(tokenizer.chat_template, variables)
