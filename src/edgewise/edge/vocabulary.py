"""What a vocabulary is known by, whoever holds it."""

import hashlib
from weakref import WeakKeyDictionary

from edgewise.edge.base import PROBES, Tokenizer

_known: WeakKeyDictionary[Tokenizer, str] = WeakKeyDictionary()


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256 over what every used id stands for, and over the ids of the probe strings.

    Equal fingerprints mean that ids mean the same bytes, whatever library reads them. Ids that
    stand for nothing are padding and left out, since models of one family pad to different sizes.
    The probes stand for merges and pre-tokenizer, which no library hands out.
    """
    found = _known.get(tokenizer)
    if found is None:
        found = _known[tokenizer] = _computed(tokenizer)
    return found


def _computed(tokenizer: Tokenizer) -> str:
    digest = hashlib.sha256()
    special = tokenizer.special
    for token in range(tokenizer.size):
        text = special.get(token)
        data = tokenizer.piece(token) if text is None else text.encode("utf-8", "surrogatepass")
        if text is not None or data:
            digest.update(b"%d\0%d\0%d\0%b" % (token, text is not None, len(data), data))
    digest.update(repr([tokenizer.encode(text) for text in PROBES]).encode())
    return digest.hexdigest()
