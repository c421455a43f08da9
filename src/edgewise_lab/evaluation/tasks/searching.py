"""The inside of the process that searches a user's regular expressions: `re` cannot be stopped."""

import json
import re


def search(request: bytes) -> bytes:
    """`1` if the pattern occurs in the text, else `0`; the request is both, as JSON."""
    pattern, text = json.loads(request)
    return b"0" if re.search(pattern, text) is None else b"1"
