"""The session protocol between a device and a gateway, version 1: see docs/protocol.md.

A gateway is a server in front of inference engines. One WebSocket has one session; each binary
message is one frame, a msgpack array whose first element is the frame's type. Both sides hold the
session's token ids, its prefix. A device's frame with ids says at which position of the prefix they
start; they replace all ids from there on. A checksum of the whole prefix shows whether both sides
hold the same ids. An `Ask` is a consult.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.errors import CloudProtocolError
from edgewise.sampling import Sampling

VERSION = 1
PATH = "/v1/session"
"""The protocol's version, and the path of its WebSocket."""

# A browser page cannot set a WebSocket's headers.
SUBPROTOCOL, KEY_SUBPROTOCOL = "edgewise.v1", "edgewise.key."
"""WebSocket subprotocols that a page offers. The gateway accepts the first. The second is a prefix,
which the page's API key follows."""

MAX_IDS, MAX_FRAME, MAX_SPAN, MAX_TOP = 1 << 17, 1 << 20, 4096, 20
"""Most ids of a prefix, bytes of a frame (a full prefix fits), tokens of an `Ask`, candidates."""

MAX_DEADLINE = 600_000
"""Longest deadline of an `Ask`, in milliseconds."""

# Characters of a session's name that logs may show: whoever knows all can resume the session.
SHOWN = 8

VOCABULARY = "vocabulary"
"""`Failed.reason` if the tokenizers of device and engine give different ids."""

# A Mersenne prime: products are reduced by shifts, and two prefixes of the same sum are rare.
_PRIME = (1 << 61) - 1
_BASE = 1_000_003
# Ids that numpy sums at a time: the powers for a row are computed once.
_ROW = 1024
_POWERS = [pow(_BASE, exponent, _PRIME) for exponent in reversed(range(_ROW))]
_UPPER = np.array([power >> 29 for power in _POWERS], np.uint64)
_LOWER = np.array([power % (1 << 29) for power in _POWERS], np.uint64)
_LOW = np.uint64((1 << 32) - 1)

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
WireIds = Annotated[list[Count], msgspec.Meta(max_length=MAX_IDS)]
Checksum = Annotated[int, msgspec.Meta(ge=0, lt=1 << 61)]
Name = Annotated[str, msgspec.Meta(max_length=64)]
"""Types of the frames' fields; a decoder enforces their bounds."""


class Open(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The device's first frame: asks for a session.

    `version` is the protocol's version, `tokenizer` the fingerprint of the device's vocabulary
    (`tokenizer_fingerprint`), `session` the name of a session to resume ("": a new one).
    """

    version: Count
    tokenizer: Name
    session: Name = ""


class Prefetch(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """From the device: ids that a later `Ask` will need, so that the engine can prefill them early.

    `ids` start at `position` of the prefix; `checksum` is that of the whole prefix with them. The
    gateway stores the ids, but may skip the prefill. It answers only if it lacks earlier ids of the
    prefix or holds different ones, and then with `NeedFull`.
    """

    position: Count
    ids: WireIds
    checksum: Checksum


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """From the device: asks the cloud model for `n` tokens, or to verify draft tokens.

    `ask` is the consult's number within the session. `ids` start at `position` of the prefix;
    `checksum` is that of the whole prefix with them. The consult fails `deadline` milliseconds
    after its arrival. For each token written, at most `top` of the likeliest ids are reported.
    `sampling` is None for greedy, else (temperature, top_k, top_p, min_p, seed). If `verify` is
    above 0, the last `verify` ids of the prefix are draft tokens to verify, and `n` must be 0.
    """

    ask: Count
    position: Count
    ids: WireIds
    checksum: Checksum
    n: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPAN)] = 1
    deadline: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEADLINE)] = 5000
    top: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP)] = 0
    sampling: tuple[float, int, float, float, Count] | None = None
    verify: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPAN)] = 0


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """From the device: the answer to the consult `ask` is no longer wanted."""

    ask: Count


class Close(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From the device: ends the session; the gateway forgets its ids."""


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The gateway's answer to `Open`.

    `session` is the session's name. Of its prefix the gateway still holds the first `known` ids,
    whose checksum is `checksum`. `engine` is the kind of inference engine behind the gateway,
    `model` the cloud model's name; `verifies` says whether draft tokens can be verified.
    """

    version: Count
    session: Name
    known: Count
    checksum: Checksum
    engine: Name
    model: str = ""
    verifies: bool = False


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The gateway's answer to the `Ask` numbered `ask`.

    `ids` are the tokens that the cloud model wrote. For each of them, `logprobs` has its logprob in
    nats and `top` the likeliest ids as (id, logprob). `stopped`: the model ended the answer.
    `cached` and `computed` prompt tokens and `engine_seconds` are the engine's own figures (None:
    unknown). `verified` has, for each draft token to verify, the cloud model's (logprob of that
    token, id that it would have written, logprob of its likeliest id).
    """

    ask: Count
    ids: tuple[Count, ...]
    logprobs: tuple[float | None, ...]
    stopped: bool = False
    cached: Count | None = None
    computed: Count | None = None
    engine_seconds: float | None = None
    top: tuple[tuple[tuple[Count, float], ...], ...] = ()
    verified: tuple[tuple[float, Count, float], ...] = ()


class NeedFull(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """From the gateway: it holds no ids of the session now; the device must send all, from 0.

    `ask` is the number of an unanswered `Ask`, to be sent again; None after a `Prefetch`.
    """

    ask: Count | None = None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """From the gateway: consult `ask` failed. If `ask` is None, the session failed and is over.

    `reason` is the kind of failure, a `Fault` such as "timeout", which the device reports as
    `Token.reason`. In answer to `Open` it may also be `VOCABULARY`: the vocabularies differ. After
    `retry_after` milliseconds, if given, the device may try again. `request_id` names the consult
    in the engine's log, if known, else in the gateway's.
    """

    ask: Count | None
    reason: Name
    message: str
    retry_after: Count | None = None
    request_id: Name | None = None


FromDevice = Open | Prefetch | Ask | Cancel | Close
FromGateway = Opened | Reply | NeedFull | Failed

_Frame = TypeVar("_Frame")

encode = msgspec.msgpack.Encoder().encode
"""Encodes a frame as bytes."""


def _decoded(decoder: msgspec.msgpack.Decoder[_Frame], data: bytes) -> _Frame:
    if len(data) > MAX_FRAME:
        raise CloudProtocolError(f"A frame has {len(data)} bytes; at most {MAX_FRAME} are allowed.")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CloudProtocolError(f"A frame is not of this protocol ({error}).") from error


from_device = partial(_decoded, msgspec.msgpack.Decoder(FromDevice))
from_gateway = partial(_decoded, msgspec.msgpack.Decoder(FromGateway))
"""Decode a frame from a device or from a gateway. Raise `CloudProtocolError` for other bytes."""


class Ledger:
    """The token ids of a session's prefix, with their `checksum`. Takes 4 bytes an id.

    The checksum of no ids is 0; one more id makes it (checksum * 1000003 + id + 1) mod (2^61 - 1).
    """

    def __init__(self, ids: Sequence[int] = ()) -> None:
        """Copy `ids`. Raises `CloudProtocolError` if one is no unsigned 32-bit number."""
        try:
            self._ids = array("I", ids)
        except (OverflowError, TypeError) as error:
            raise CloudProtocolError(f"Ids are unsigned 32-bit numbers ({error}).") from error
        self.checksum = _checksum(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """All ids, as a new list."""
        return self._ids.tolist()

    def copy(self) -> "Ledger":
        """Return a copy. For a prefix of `MAX_IDS` ids this takes a quarter of a millisecond."""
        made = Ledger()
        made._ids, made.checksum = self._ids[:], self.checksum
        return made

    def put(self, position: int, ids: "Sequence[int] | Ledger") -> bool:
        """Replace all ids from `position` on by `ids`, and update the checksum.

        Returns False, with nothing changed, if `position` is beyond the end. Raises
        `CloudProtocolError` if an id is no unsigned 32-bit number.
        """
        if position > len(self._ids):
            return False
        added = ids if isinstance(ids, Ledger) else Ledger(ids)
        gone = self._ids[position:] if position else self._ids
        # The check is a polynomial: what stood at the end can be taken off again.
        rest = self.checksum - _checksum(gone) if position else 0
        shift = pow(_BASE, len(added) - len(gone), _PRIME)
        self.checksum = (rest * shift + added.checksum) % _PRIME
        del self._ids[position:]
        self._ids.extend(added._ids)
        return True


def _checksum(ids: "array[int]") -> int:
    """Return the checksum of ids (see `Ledger`); many are hashed in rows, as vectors."""
    if len(ids) < _ROW:
        return _horner((token + 1 for token in ids), _BASE)
    rows = -(-len(ids) // _ROW)
    terms = np.zeros(rows * _ROW, np.uint64)
    # Zeros before the first id change nothing.
    terms[-len(ids) :] = np.frombuffer(ids, np.uint32)
    terms[-len(ids) :] += np.uint64(1)
    # A term times a power has 94 bits: the power's upper 32 bits and its lower 29 apart, and as
    # 2^61 is 1 here, the upper product's bits from 32 on count once.
    upper, lower = terms.reshape(rows, _ROW) * _UPPER, terms.reshape(rows, _ROW) * _LOWER
    reduced = (upper >> np.uint64(32)) + ((upper & _LOW) << np.uint64(29)) + lower
    high, low = (reduced >> np.uint64(32)).sum(axis=1), (reduced & _LOW).sum(axis=1)
    sums = ((int(upmost) << 32) + int(lowest) for upmost, lowest in zip(high, low, strict=True))
    return _horner(sums, pow(_BASE, _ROW, _PRIME))


def _horner(terms: Iterable[int], base: int) -> int:
    """Evaluate a polynomial modulo `_PRIME` at `base`; `terms` are its coefficients."""
    value = 0
    for term in terms:
        value = (value * base + term) % _PRIME
    return value


def fingerprint(ids: Sequence[Sequence[int]]) -> str:
    """Return 16 hex digits that identify a vocabulary by its `ids` of each string in `PROBES`."""
    # With its length after each, or an id that moves to the next string would change nothing.
    ledger = Ledger([token for part in ids for token in (*part, len(part))])
    return f"{ledger.checksum:016x}"


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Return the fingerprint of a tokenizer's vocabulary, as a device sends it in `Open`."""
    return fingerprint([tokenizer.encode(text) for text in PROBES])


def request_id(session: str, ask: int) -> str:
    """Return a consult's name in logs: the first 8 characters of `session`, "-", `ask` in hex."""
    return f"{session[:SHOWN]}-{ask:x}"


def packed(sampling: Sampling) -> tuple[float, int, float, float, int] | None:
    """Return `Ask.sampling`: (temperature, top_k, top_p, min_p, seed), or None for greedy."""
    if sampling.greedy:
        return None
    s = sampling
    return (s.temperature, s.top_k, s.top_p, s.min_p, s.seed % (1 << 32))


def unpacked(sampling: tuple[float, int, float, float, int] | None) -> Sampling:
    """Return the settings in `Ask.sampling`. Raises `UsageError` for values out of bounds."""
    if sampling is None:
        return Sampling()
    temperature, top_k, top_p, min_p, seed = sampling
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
