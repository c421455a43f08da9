"""The session protocol between a device and a gateway, version 1: see docs/protocol.md.

One WebSocket is one session; each binary message is one frame, a msgpack array whose first element
says which. Every frame with ids says at which position they start; what stood from there on is
gone. A check over the whole prefix proves that both sides hold the same ids.
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

SUBPROTOCOL, KEY_SUBPROTOCOL = "edgewise.v1", "edgewise.key."
"""WebSocket subprotocols of a browser page, which cannot set headers: the protocol, and its key
after the second's dot. The gateway answers with the first only."""

MAX_IDS, MAX_FRAME, MAX_SPAN, MAX_TOP = 1 << 17, 1 << 20, 4096, 20
"""Most ids of a prefix, bytes of a frame (a full prefix fits), tokens and candidates."""

MAX_DEADLINE = 600_000
"""Milliseconds."""

SHOWN = 8
"""Characters of a session's name that are shown: the whole name resumes it."""

VOCABULARY = "vocabulary"
"""Reason of a refused session: the device's ids do not mean what the engine's do."""

_PRIME = (1 << 61) - 1
_BASE = 1_000_003
_ROW = 1024
_POWERS = [pow(_BASE, exponent, _PRIME) for exponent in reversed(range(_ROW))]
_UPPER = np.array([power >> 29 for power in _POWERS], np.uint64)
_LOWER = np.array([power % (1 << 29) for power in _POWERS], np.uint64)
_LOW = np.uint64((1 << 32) - 1)

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
WireIds = Annotated[list[Count], msgspec.Meta(max_length=MAX_IDS)]
Checksum = Annotated[int, msgspec.Meta(ge=0, lt=1 << 61)]
Name = Annotated[str, msgspec.Meta(max_length=64)]


class Open(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Device, first: `session` resumes one ("" is a new one), `tokenizer` proves the vocabulary."""

    version: Count
    tokenizer: Name
    session: Name = ""


class Prefetch(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Device: ids that a later consult will need; best effort, not answered."""

    position: Count
    ids: WireIds
    checksum: Checksum


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Device: `n` tokens after the ids. `top` candidates a token, `deadline` in milliseconds.

    `sampling` is None for greedy, else (temperature, top_k, top_p, min_p, seed). The last `verify`
    ids before them are the device's and to be verified; `n` may be 0 then.
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
    """Device: the completion is not wanted any more."""

    ask: Count


class Close(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Device: forget the session."""


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Gateway, to `Open`: the session's name, how many ids it holds, with their check; whether
    its engines can verify the device's tokens."""

    version: Count
    session: Name
    known: Count
    checksum: Checksum
    engine: Name
    model: str = ""
    verifies: bool = False


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Gateway, to `Ask`: a completion. `top` holds (id, logprob) pairs a token.

    `verified` holds (logprob of the device's id, the model's own id, logprob of its likeliest) for
    each that was to be verified.
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
    """Gateway: it does not hold the prefix of `ask` (None: of a prefetch); send it from 0."""

    ask: Count | None = None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Gateway: `reason` as the device reports it; `retry_after` in milliseconds, where it is set.

    With `ask` None the session is over. To `Open`, the reason may also be `VOCABULARY`.
    `request_id` is the engine's where it gave one, else that of the consult.
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


def _decoded(decoder: msgspec.msgpack.Decoder[_Frame], data: bytes) -> _Frame:
    if len(data) > MAX_FRAME:
        raise CloudProtocolError(f"A frame has {len(data)} bytes; at most {MAX_FRAME} are allowed.")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CloudProtocolError(f"A frame is not of this protocol ({error}).") from error


from_device = partial(_decoded, msgspec.msgpack.Decoder(FromDevice))
from_gateway = partial(_decoded, msgspec.msgpack.Decoder(FromGateway))
"""A frame of bytes; they raise `CloudProtocolError` for anything else."""


class Ledger:
    """Ids by the rule of positions, with the check of all of them; 4 bytes an id.

    The check of no ids is 0; with one more id it is (check * 1000003 + id + 1) mod (2^61 - 1).
    """

    def __init__(self, ids: Sequence[int] = ()) -> None:
        """Raises `CloudProtocolError` for ids that are no unsigned 32-bit numbers."""
        try:
            self._ids = array("I", ids)
        except (OverflowError, TypeError) as error:
            raise CloudProtocolError(f"Ids are unsigned 32-bit numbers ({error}).") from error
        self.checksum = _checksum(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """All of them, copied."""
        return self._ids.tolist()

    def copy(self) -> "Ledger":
        """A copy; a quarter of a millisecond for the longest prefix."""
        made = Ledger()
        made._ids, made.checksum = self._ids[:], self.checksum
        return made

    def put(self, position: int, ids: "Sequence[int] | Ledger") -> bool:
        """Replace what stands from `position` on; False where that lies beyond the end."""
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
    """Hashes a few ids in sequence; many in rows, as vectors."""
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
    value = 0
    for term in terms:
        value = (value * base + term) % _PRIME
    return value


def fingerprint(ids: Sequence[Sequence[int]]) -> str:
    """Fingerprint of a vocabulary: hash of its ids of each of `PROBES`, and their number."""
    ledger = Ledger([token for part in ids for token in (*part, len(part))])
    return f"{ledger.checksum:016x}"


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """The fingerprint of the device's vocabulary in `Open`."""
    return fingerprint([tokenizer.encode(text) for text in PROBES])


def request_id(session: str, ask: int) -> str:
    """Name of a consult in the logs of both sides and the engine, and in traces. It is not sent."""
    return f"{session[:SHOWN]}-{ask:x}"


def packed(sampling: Sampling) -> tuple[float, int, float, float, int] | None:
    """Encodes sampling settings as the tuple in `Ask`; None for greedy."""
    if sampling.greedy:
        return None
    s = sampling
    return (s.temperature, s.top_k, s.top_p, s.min_p, s.seed % (1 << 32))


def unpacked(sampling: tuple[float, int, float, float, int] | None) -> Sampling:
    """Decodes the sampling of an `Ask`; raises `UsageError` for values out of bounds."""
    if sampling is None:
        return Sampling()
    temperature, top_k, top_p, min_p, seed = sampling
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
