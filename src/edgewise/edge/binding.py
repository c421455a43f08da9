"""llama-cpp-python's calls, untyped: its stubs declare ctypes objects where it takes integers."""

from typing import Any

import llama_cpp as _llama_cpp

llama_cpp: Any = _llama_cpp
