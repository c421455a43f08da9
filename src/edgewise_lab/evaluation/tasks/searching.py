"""Search by regular expression in a child process, as `re` itself cannot be stopped."""

import json
import re


def search(request: bytes) -> bytes:
    """Return b"1" if the pattern occurs in the text, else b"0". `request`: JSON [pattern, text]."""
    pattern, text = json.loads(request)
    return b"0" if re.search(pattern, text) is None else b"1"
