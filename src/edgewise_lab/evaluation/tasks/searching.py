"""Search by regular expression in a child process, as `re` itself cannot be stopped."""

import json
import re


def search(request: bytes) -> bytes:
    """Return b"1" if a pattern occurs in a text, else b"0"; `request` is a JSON list of the two."""
    pattern, text = json.loads(request)
    return b"0" if re.search(pattern, text) is None else b"1"
