"""Replies that no engine should give: each is tried at every token of an answer."""

import gzip
from collections.abc import Callable

from msgspec.structs import replace

from tests.doubles.engine_dialects import Writing
from tests.doubles.scripted_engine import Edited, Misdeed, Twisted, Wire

LARGE = 5_000_000
ELSEWHERE = "/elsewhere"
"""Where redirects lead; a request for it is a stray."""

SLOW = ("never answers", "one byte per 50 ms", "headers, one byte per 50 ms")
"""Kinds that cost a deadline each."""

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_SAID = b"-0.1"
"""The logprob that a scripted engine says."""


def kinds(size: int) -> dict[str, Misdeed]:
    """By name, at a vocabulary of `size` ids."""
    return {
        **{f"id {name}": _id(value) for name, value in _values(size).items()},
        **{f"candidate {name}": _candidate(value) for name, value in _values(size).items()},
        **_wrong_lengths(),
        **_wrong_numbers(),
        **_wrong_bodies(),
        **_wrong_statuses(),
        **_wrong_wires(),
        "500": "error",
        "429": "busy",
        "400": "declined",
        "bytes that are no JSON": "garbage",
        "reset": "reset",
        "never answers": "hang",
    }


def _values(size: int) -> dict[str, object]:
    return {
        "size": size,
        "-1": -1,
        "10^6": 10**6,
        "2^31": 1 << 31,
        "2^32": 1 << 32,
        "2^63": 1 << 63,
        "2^64": 1 << 64,
        "-2^63": -(1 << 63),
        "97.5": 97.5,
        "true": True,
        "text": "97",
        "null": None,
        "list": [97],
    }


def _id(value: object) -> Twisted:
    return Twisted(lambda w: replace(w, ids=[value, *w.ids[1:]]))


def _candidate(value: object) -> Twisted:
    return Twisted(lambda w: replace(w, top=[[(value, -0.5), *row] for row in w.top]))


def _changed(change: Callable[[bytes], bytes]) -> Edited:
    return Edited(change)


def _wrong_lengths() -> dict[str, Misdeed]:
    def longer(w: Writing) -> Writing:
        return replace(w, ids=w.ids * 1000, logprobs=w.logprobs * 1000, top=w.top * 1000)

    return {
        "no id": Twisted(lambda w: replace(w, ids=[], logprobs=[], top=[])),
        "1,000 ids for one": Twisted(longer),
        "no logprobs": Twisted(lambda w: replace(w, logprobs=[], top=[])),
        "1,000 logprobs for one id": Twisted(lambda w: replace(w, logprobs=w.logprobs * 1000)),
        "1,000 candidates": Twisted(lambda w: replace(w, top=[row * 1000 for row in w.top])),
        "candidates of another token": Twisted(lambda w: replace(w, top=[*w.top, *w.top])),
    }


def _wrong_numbers() -> dict[str, Misdeed]:
    told = {
        "NaN": b"NaN",
        "Infinity": b"Infinity",
        "1e999": b"1e999",
        "text": b'"x"',
        "list": b"[]",
    }
    logprobs: dict[str, Misdeed] = {
        f"logprob {name}": _changed(lambda data, value=value: data.replace(_SAID, value))
        for name, value in told.items()
    }
    meters: dict[str, object] = {"-5": -5, "2^64": 1 << 64, "0.5": 0.5, "text": "many"}
    return {
        **logprobs,
        **{
            f"cached {name}": Twisted(lambda w, value=value: replace(w, cached=value))
            for name, value in meters.items()
        },
        **{
            f"computed {name}": Twisted(lambda w, value=value: replace(w, computed=value))
            for name, value in meters.items()
        },
        "time -5": Twisted(lambda w: replace(w, took=-5.0)),
        "time 1e300": Twisted(lambda w: replace(w, took=1e300)),
        "time NaN": Twisted(lambda w: replace(w, took=float("nan"))),
    }


def _wrong_bodies() -> dict[str, Misdeed]:
    bodies = {
        "empty body": b"",
        "null": b"null",
        "a number": b"7",
        "a list": b"[]",
        "an object of nothing": b"{}",
        "an error with status 200": b'{"error": {"message": "no", "code": 500}}',
        "nested lists": b"[" * 200_000,
        "nested objects": b'{"a":' * 200_000,
        "not UTF-8": b'{"tokens": "\xff\xfe"}',
        "a page": b"<!doctype html><title>Sign in</title>",
    }

    def padded(size: int) -> Callable[[bytes], bytes]:
        return lambda data: data[:-1] + b', "padding": "' + b"x" * size + b'"}'

    return {
        **{name: _changed(lambda _, body=body: body) for name, body in bodies.items()},
        "half of it": _changed(lambda data: data[: len(data) // 2]),
        "more after the end": _changed(lambda data: data + b"]}" * 100),
        "twice": _changed(lambda data: data * 2),
        "a byte order mark": _changed(lambda data: b"\xef\xbb\xbf" + data),
        "5 MB": _changed(padded(LARGE)),
        "3 MB": _changed(padded(3_000_000)),
        "as text/html": Edited(headers={"Content-Type": "text/html"}),
        "a request id of 6,000 characters": Edited(headers={"x-request-id": "7" * 6000}),
        "compressed, a bomb": Edited(_bomb, headers={"Content-Encoding": "gzip"}),
        "compressed, it says": Edited(headers={"Content-Encoding": "gzip"}),
    }


def _bomb(data: bytes) -> bytes:
    return gzip.compress(data + b" " * (32 << 20), 1)


def _wrong_statuses() -> dict[str, Misdeed]:
    plain = {status: Edited(status=status) for status in STATUSES}
    moved = {
        status: Edited(status=status, headers={"Location": ELSEWHERE})
        for status in (301, 302, 303, 307, 308)
    }
    odd = {
        status: Wire([f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode()])
        for status in (100, 101, 103, 204, 304, 600, 999)
    }
    return {f"status {status}": fault for status, fault in (plain | moved | odd).items()}


STATUSES = (201, 206, 300, 401, 402, 403, 404, 408, 413, 418, 451, 501, 502, 503, 504, 599)


def _wrong_wires() -> dict[str, Misdeed]:
    chunked = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
    drip = [_OK + b"Content-Length: 500\r\n\r\n", *[b" "] * 500]
    return {
        "closed before a byte": Wire([]),
        "closed in the status line": Wire([b"HTTP/1.1 2"]),
        "closed in the headers": Wire([_OK]),
        "closed in the body": Wire([_OK + b'Content-Length: 100\r\n\r\n{"tokens": [']),
        "a status that is no number": Wire([b"HTTP/1.1 two\r\n\r\n"]),
        "no HTTP": Wire([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)]),
        "a length that is no number": Wire([_OK + b"Content-Length: many\r\n\r\n{}"]),
        "a negative length": Wire([_OK + b"Content-Length: -1\r\n\r\n{}"]),
        "two lengths": Wire([_OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"]),
        "chunks of no size": Wire([chunked + b"zz\r\nhello\r\n"]),
        "a chunk of 2^64": Wire([chunked + b"10000000000000000\r\nhello\r\n"]),
        "chunks without an end": Wire([chunked + b"2\r\n{}\r\n"]),
        "10,000 headers": Wire([_OK, *[b"X-A: b\r\n" * 1000] * 10, b"\r\n"]),
        "a header of 1 MB": Wire([_OK + b"X-A: " + b"a" * 1_000_000 + b"\r\n\r\n"]),
        "one byte per 50 ms": Wire(drip, 0.05),
        "headers, one byte per 50 ms": Wire([bytes([byte]) for byte in _OK * 20], 0.05),
    }
