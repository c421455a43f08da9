"""What a child process runs to test the code of one reply.

The process has limits on time, memory and file size, an empty working folder, no environment
variables, no input, no output, and on Linux, if user namespaces are allowed, no network. It is no
jail: the code can read whatever its user can read, on other systems it has a network, and if its
user is root, it can start processes that outlive the child. This protects from mistakes of models,
not from code that is meant to do harm.
"""

import ctypes
import json
import os
import sys
from contextlib import suppress
from types import ModuleType

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""Flags of Linux's `unshare`. A user namespace needs no root, and permits a network namespace."""


def run(request: bytes) -> bytes:
    """Run a reply's code, then its tests; return the token in `request`, or b"" after an exception.

    `request` is JSON: [token, working folder, Python that may fail, the reply's code, tests]. The
    random token keeps code that ends the process, or writes to its pipes, from counting as right.
    """
    token, folder, before, code, tests = json.loads(request)
    _enclose(folder)
    module = ModuleType("reply")
    sys.modules["reply"] = module
    with suppress(BaseException):
        exec(before, module.__dict__)  # noqa: S102
    try:
        exec(code, module.__dict__)  # noqa: S102
        exec(tests, module.__dict__)  # noqa: S102
    except BaseException:
        return b""
    return token.encode()


def _enclose(folder: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    sys.path.pop()  # this module's folder
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


# A process with a second thread, such as its timer, may not do it.
with suppress(AttributeError, OSError, TypeError):
    ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)
