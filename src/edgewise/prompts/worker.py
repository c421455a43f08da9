"""The process that renders chat templates, so that what they waste can be ended with it.

Run as a file, with nothing of Edgewise: `worker.py MEMORY SECONDS LONGEST FOLDER...` may take that
much address space (bytes), ends itself where a rendering takes that long (for the case that nobody
is left to do it), writes texts of that many characters, and finds Jinja in the folders. A frame is
a length (4 bytes, big-endian) and as many bytes of JSON; an empty one says that the worker is
ready. A request on stdin has `template` and `variables`; the reply on stdout is `{"text": ...}`, or
`{"refused": ..., "reason": ...}`. At the end of stdin the worker ends.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import IO, Any, NoReturn

HEAD = 4
"""Bytes of a frame's length."""

LONGEST_REASON = 200
"""Characters of a template's own words that are passed on."""


class _Refused(Exception):
    """What a template says of a conversation that it does not take."""


class _TooLong(Exception):
    """More was written than may be."""


def answer(request: bytes, longest: int) -> bytes:
    """The reply to a request. Whatever a template raises is its refusal."""
    try:
        asked: dict[str, Any] = json.loads(request)
        text = render(asked["template"], asked["variables"], longest)
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
    """The text of a template, at most `longest` characters of it."""
    pieces: list[str] = []
    left = longest
    for piece in compiled(source).generate(**variables):
        left -= len(piece)
        if left < 0:
            raise _TooLong
        pieces.append(piece)
    return "".join(pieces)


@lru_cache(maxsize=8)
def compiled(source: str) -> Any:
    """A template in Jinja's sandbox, with the helpers that published ones expect."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _raise(message: str) -> NoReturn:
    raise _Refused(message)


def _limit(memory: int) -> None:
    """As far as the platform has limits and takes these."""
    try:
        import resource
    except ImportError:
        return
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    for kind, most in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def _serve(requests: IO[bytes], replies: IO[bytes], *, seconds: float, longest: int) -> None:
    with open(os.devnull, "wb") as nowhere:
        _send(replies, b"")
        while head := requests.read(HEAD):
            request = requests.read(int.from_bytes(head, "big"))
            # By a thread of C's: one long operation keeps all of Python's waiting.
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            reply = answer(request, longest)
            faulthandler.cancel_dump_traceback_later()
            _send(replies, reply)


def _send(replies: IO[bytes], data: bytes) -> None:
    replies.write(len(data).to_bytes(HEAD, "big") + data)
    replies.flush()


def main() -> None:
    """Answer requests until there are none."""
    # Ctrl-C is for who asked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    memory, seconds, longest, *folders = sys.argv[1:]
    sys.path.extend(folders)
    compiled("")
    _limit(int(memory))
    _serve(sys.stdin.buffer, sys.stdout.buffer, seconds=float(seconds), longest=int(longest))


if __name__ == "__main__":
    main()
