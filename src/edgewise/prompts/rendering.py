"""Chat templates come with downloaded models: they run in Jinja's sandbox, in another process.

The sandbox keeps a template from what is not its own; the process bounds its time, memory and
output, and is killed where it goes beyond. It is kept for the next rendering; they take turns.
"""

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import ModelError, UsageError
from edgewise.prompts.messages import MAX_PROMPT, Change, Message, Tool, conversation
from edgewise.sandbox import Child, ChildEnded, Why

MAX_TEMPLATE = 100_000
"""Longest chat template that is compiled, characters."""

SECONDS = 2.0
"""Longest that one rendering may take, compiling included."""

MEMORY = 512 << 20
"""Most memory of a process that renders, bytes. Idle it takes 21 MB."""

_LIBRARIES = ("jinja2", "markupsafe")


class _Reply(msgspec.Struct):
    text: str | None = None
    refused: Literal["template", "memory", "length"] = "template"
    reason: str = ""


class Renderer:
    """Renders chat templates within limits, for any number of threads."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        """`seconds` a rendering."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: Child | None = None
        if hasattr(os, "register_at_fork"):  # where there are forks
            os.register_at_fork(after_in_child=self._abandon)

    def start(self) -> None:
        """Begin to start the process, so that the first rendering has one."""
        with self._lock:
            self._running()

    def render(self, template: str, variables: Mapping[str, object]) -> str:
        """The text of a template. Raises `ModelError`; `UsageError` for what is no text."""
        if len(template) > MAX_TEMPLATE:
            raise _unrendered(f"has {len(template)} characters, more than {MAX_TEMPLATE}")
        try:
            request = msgspec.json.encode(
                {"template": template, "variables": variables, "longest": MAX_PROMPT}
            )
        except UnicodeEncodeError as error:
            raise UsageError("A message is not valid UTF-8", hint="convert it first") from error
        with self._lock:
            process = self._running()
            try:
                reply = msgspec.json.decode(process.ask(request), type=_Reply)
            except (ChildEnded, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._end()
                why: Why = error.why if isinstance(error, ChildEnded) else "process"
                raise self._past(why) from error
            except BaseException:
                self._end()  # in the middle of a reply
                raise
            if reply.text is None and reply.refused == "memory":
                # What is left of it may not do for the next.
                self._end()
        if reply.text is not None:
            return reply.text
        if reply.refused == "template":
            raise _unrendered(f"does not accept this conversation ({reply.reason})")
        raise self._past(reply.refused)

    def close(self) -> None:
        """End the process, and a rendering under way. The next rendering starts one."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _abandon(self) -> None:
        """Begin anew in a process that was forked from this one's."""
        if self._process is not None:
            self._process.abandon()
        self._lock, self._process = threading.Lock(), None

    def _running(self) -> Child:
        if self._process is not None and self._process.alive:
            return self._process
        self._end()  # somebody else ended it, and no template did
        try:
            self._process = Child(
                "template:answer",
                seconds=self._seconds,
                memory=MEMORY,
                longest=6 * MAX_PROMPT + (1 << 16),  # in JSON a character is six bytes at most
                folders=[str(Path(__file__).parent), *_folders()],
            )
        except OSError as error:
            raise self._past("start") from error
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _past(self, limit: Why | Literal["memory", "length"]) -> ModelError:
        said = {
            "start": "could not be rendered: the process for it did not start",
            "time": f"takes more than {self._seconds:g} s for this conversation",
            "memory": f"takes more than {MEMORY >> 20} MB of memory for this conversation",
            "length": f"makes more than {MAX_PROMPT} characters of this conversation",
            "process": "ended the process that renders it",
        }
        return _unrendered(said[limit])


def _unrendered(what: str) -> ModelError:
    return ModelError(
        f"The model's chat template {what}", hint="send the text as it is", setting="no_template"
    )


def _folders() -> list[str]:
    found = [find_spec(name) for name in _LIBRARIES]
    origins = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins))


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
    refuses it, or goes beyond its limits; `UsageError` for invalid tool calls.
    """
    assert tokenizer.chat_template is not None
    variables = {
        **conversation(messages, tools, change),
        "add_generation_prompt": True,
        "bos_token": tokenizer.special_text("bos"),
        "eos_token": tokenizer.special_text("eos"),
    }
    return _RENDERER.render(tokenizer.chat_template, variables)
