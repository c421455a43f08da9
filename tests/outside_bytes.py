"""Bytes as a hostile or broken other side sends them: arbitrary ones, and valid ones changed."""

import json
import re
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

NUMBERS = ["-1", "0", "1e999", "-1e999", "NaN", "1.5", "2147483648", "18446744073709551616"]
NUMBERS += ["9" * 40]
VALUES: list[Any] = [None, True, -1, 0, 1.5, 1e308, 1 << 31, 1 << 64, 10**30]
VALUES += ["", "x" * 300, "\0", [], [[]], {}, {"x": 1}]

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
Edit = Callable[[bytes], bytes]


def _spliced(place: float, size: int, more: bytes) -> Edit:
    """Other bytes instead of `size` ones: what is changed, cut out, cut off, or put in."""

    def edit(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[:at] + more + data[at + size :]

    return edit


def _twice(place: float, size: int) -> Edit:
    def edit(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[: at + size] + data[at:]

    return edit


def _number(place: float, number: str) -> Edit:
    def edit(data: bytes) -> bytes:
        found = list(_NUMBER.finditer(data))
        if not found:
            return data
        one = found[int(place * len(found))]
        return data[: one.start()] + number.encode() + data[one.end() :]

    return edit


_PLACES = st.floats(0, 1, exclude_max=True)
_EDITS = st.one_of(
    st.builds(_spliced, _PLACES, st.just(1), st.binary(min_size=1, max_size=1)),
    st.builds(_spliced, _PLACES, st.integers(1, 40) | st.just(1 << 40), st.just(b"")),
    st.builds(_spliced, _PLACES, st.just(0), st.binary(min_size=1, max_size=9)),
    st.builds(_twice, _PLACES, st.integers(1, 40)),
    st.builds(_number, _PLACES, st.sampled_from(NUMBERS)),
)


def bytes_like(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Arbitrary bytes, and each of `valid` with up to four edits."""

    def edited(data: bytes, edits: list[Edit]) -> bytes:
        for edit in edits:
            data = edit(data)
        return data

    changed = st.builds(edited, st.sampled_from(valid), st.lists(_EDITS, max_size=4))
    return st.one_of(st.binary(max_size=200), changed, changed)


def json_like(*valid: object) -> st.SearchStrategy[bytes]:
    """As `bytes_like`; also with a value anywhere inside replaced, left out, or put there twice."""
    texts = [json.dumps(one).encode() for one in valid]
    replaced = st.builds(
        _replaced,
        st.sampled_from(texts),
        st.lists(st.tuples(_PLACES, st.sampled_from(VALUES)), min_size=1, max_size=3),
    )
    return st.one_of(bytes_like(*texts), replaced, replaced)


def lines_like(*valid: object) -> st.SearchStrategy[bytes]:
    """Lines of JSON, some of them as `json_like`."""
    good = st.sampled_from([json.dumps(one).encode() for one in valid])
    lines = st.lists(st.one_of(good, good, json_like(*valid)), max_size=4)
    return st.builds(
        lambda parts, end: b"\n".join(parts) + end, lines, st.sampled_from([b"", b"\n"])
    )


def _replaced(text: bytes, changes: list[tuple[float, object]]) -> bytes:
    found: Any = json.loads(text)
    for place, value in changes:
        places = list(_places(found))
        if not places:
            return json.dumps(value).encode()
        holder, key = places[int(place * len(places))]
        if value is None and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = deepcopy(value)
    return json.dumps(found).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place inside."""
    keys: Iterable[Any] = value if isinstance(value, dict) else ()
    if isinstance(value, list):
        keys = range(len(value))
    inside = [place for key in keys for place in _places(value[key])]
    return [(value, key) for key in keys] + inside
