"""Rendering of chat templates, which come with downloaded models and are not trusted.

Templates run in Jinja's sandbox, in a child process with limits of time, memory and output. The
process is kept for the next rendering, unless it ran out of time or memory. Renderings take turns.
"""

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import ModelError, UsageError
from edgewise.prompts.messages import (
    MAX_PROMPT,
    Change,
    Message,
    Role,
    Tool,
    alternating,
    conversation,
)
from edgewise.prompts.tool_formats import has_tools, tool_template
from edgewise.sandbox import Child, ChildEnded, Why

MAX_TEMPLATE = 100_000
"""Maximum length of a chat template, in characters."""

SECONDS = 2.0
"""Maximum time of one rendering, in seconds, compilation included."""

MEMORY = 512 << 20
"""Maximum memory of the process that renders, in bytes. Idle it takes 21 MB."""

_LIBRARIES = ("jinja2", "markupsafe")


class _Reply(msgspec.Struct):
    text: str | None = None
    refused: Literal["template", "memory", "length"] = "template"
    reason: str = ""


class TemplateRefusal(ModelError):
    """Raised if a chat template itself raises an error, as for messages it does not support."""


class Renderer:
    """Renders chat templates in a child process, each within `seconds`. Any thread may call it."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: Child | None = None
        if hasattr(os, "register_at_fork"):  # where there are forks
            os.register_at_fork(after_in_child=self._abandon)

    def start(self) -> None:
        """Start the child process, without waiting for it. Raises `ModelError` if that fails."""
        with self._lock:
            self._running()

    def render(self, template: str, variables: Mapping[str, object]) -> str:
        """Return the text that a template makes of `variables`.

        Raises `TemplateRefusal` if the template itself raised an error; another `ModelError` if it
        is too long, or exceeds a limit of time, memory or output; `UsageError` if a text is not
        Unicode.
        """
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
            raise _unrendered(
                f"does not accept this conversation ({reply.reason})", TemplateRefusal
            )
        raise self._past(reply.refused)

    def close(self) -> None:
        """End the process, even during a rendering. The next rendering starts a new one."""
        # Without the lock, which a rendering holds until its process has ended.
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _abandon(self) -> None:
        """Forget the child process after a fork."""
        # The child belongs to the parent, a thread of which may hold the lock.
        if self._process is not None:
            self._process.abandon()
        self._lock, self._process = threading.Lock(), None

    def _running(self) -> Child:
        if self._process is not None and self._process.alive:
            return self._process
        self._end()  # somebody else ended it, and no template did
        try:
            # Jinja's sandbox bounds what a template may call, but not its time, memory and output.
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


def _unrendered(what: str, kind: type[ModelError] = ModelError) -> ModelError:
    hint = "use another file of the model, or send raw text (run --no-template, /v1/completions)"
    return kind(f"The model's chat template {what}", hint=hint)


def _folders() -> list[str]:
    found = [find_spec(name) for name in _LIBRARIES]
    origins = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins))


_RENDERER = Renderer()
atexit.register(_RENDERER.close)


def prepare() -> None:
    """Start the process that renders templates, without waiting."""
    # A failure is reported by the rendering that needs it.
    with suppress(ModelError):
        _RENDERER.start()


_ANSWER = {"add_generation_prompt": True}
# Characters of a template that an error shows whole, such as a template that is only a word.
_SHORT = 60
_TRIALS: Mapping[Role, Sequence[Role]] = {
    "system": ("system", "user"),
    "user": ("user",),
    "assistant": ("user", "assistant", "user"),
}


@lru_cache(maxsize=32)
def _contents_read(template: str, bos: str, eos: str) -> Mapping[str, bool]:
    """Return the roles whose contents a template writes, each with whether it needs parts."""

    def differ(role: Role, parts: Sequence[str]) -> bool | None:
        made: set[str] = set()
        for word in ("north", "south"):
            turns = [Message(one, word if one == role else "x") for one in _TRIALS[role]]
            variables = conversation(turns, (), str, parts=parts)
            names = {"bos_token": bos, "eos_token": eos}
            try:
                made.add(_RENDERER.render(template, {**variables, **names, **_ANSWER}))
            except TemplateRefusal:
                return None
        return len(made) > 1

    read: dict[str, bool] = {}
    for role in _TRIALS:
        plain = differ(role, ())
        if plain or differ(role, tuple(_TRIALS)):
            read[role] = not plain
        # The real conversation will show why it was refused.
        elif plain is None and role != "system":
            read[role] = False
    return read


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    change: Change = str,
) -> str:
    """Return a conversation as text, rendered by the chat template, which the tokenizer must have.

    Every text of the messages and `tools` is passed through `change` first. If the template refuses
    system messages or turns that do not alternate, the conversation is rearranged and tried again.
    Raises `ModelError` if the template refuses every arrangement, leaves out what the user or the
    assistant says, or exceeds a limit of time, memory or output.
    """
    template = tool_template(tokenizer) if has_tools(messages, tools) else tokenizer.chat_template
    assert template is not None
    names = {f"{one}_token": tokenizer.special_text(one) for one in ("bos", "eos")}
    # Some templates ignore system messages, or every message, without an error.
    read, roles = _contents_read(template, *names.values()), {one.role for one in messages}
    for role in ("user", "assistant"):
        if role in roles and role not in read:
            shown = f"({template!r}) " if len(template) < _SHORT else ""
            raise _unrendered(f"{shown}leaves out what the {role} says")
    forms = [alternating(messages, system=False)]
    if "system" in read or "system" not in roles:
        forms = [messages, alternating(messages, system=True), *forms]
    refusals: list[TemplateRefusal] = []
    parts = {role for role in read if read[role]}
    parts |= {"tool"} if "user" in parts else set()
    for turns in forms:
        variables = conversation(turns, tools, change, parts=parts)
        try:
            return _RENDERER.render(template, {**variables, **names, **_ANSWER})
        except TemplateRefusal as error:
            refusals.append(error)
    # The first is about the conversation as it was given.
    raise refusals[0]
