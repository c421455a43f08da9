"""The inside of the process that runs a reply's code, once.

The process is bounded in time, memory and the size of a file. Its folder is empty, it has no
variables, no input and no output, and on Linux, where user namespaces are allowed, no network. It
is no jail: it reads what its user may read, elsewhere it has a network, and what it starts as root
may outlive it. So it is for the mistakes of models, not for code that is meant to do harm.
"""

import ctypes
import json
import os
import sys
from contextlib import suppress
from types import ModuleType

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
"""Flags of Linux's `unshare`: a namespace of users needs no root, and lets one of networks be."""


def run(request: bytes) -> bytes:
    """The request's token, if its code and then its tests end without an error; else nothing.

    The request is JSON: a token, the folder to be in, Python that may fail, code and tests. The
    token keeps a reply that ends the process, or writes to its pipes, from counting as right.
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
