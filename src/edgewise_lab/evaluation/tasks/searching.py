"""Search by regular expression in a child process, as `re` itself cannot be stopped."""

import json
import re


def search(request: bytes) -> bytes:
    """Return `1` if the pattern occurs in the text, else `0`; the request has both as JSON."""
    pattern, text = json.loads(request)
    return b"0" if re.search(pattern, text) is None else b"1"
