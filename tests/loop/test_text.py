"""Detokenizer and stop strings: exact over any split."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from edgewise.loop.state import HeldText


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_any_split_of_bytes_decodes_as_the_whole(data: bytes, cuts: list[int]) -> None:
    state, texts = HeldText(), []
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    for start, end in pairwise(edges):
        text, state, _ = state.feed(data[start:end], ())
        texts.append(text)
        assert len(state.pending) <= 3
    assert "".join(texts) + state.release(())[0] == data.decode("utf-8", "replace")


def test_a_character_appears_with_its_last_byte() -> None:
    state, texts = HeldText(), []
    for byte in "é🙂".encode():
        text, state, _ = state.feed(bytes([byte]), ())
        texts.append(text)
    assert texts == ["", "é", "", "", "", "🙂"]


def _cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first."""
    for end in range(len(text) + 1):
        found = [at for stop in stops if (at := text.find(stop, 0, end)) >= 0]
        if found:
            return text[: min(found)], True
    return text, False


@given(st.text("ab", max_size=48), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stops_match_across_pieces(text: str, stops: list[str]) -> None:
    state, shown, matched = HeldText(), "", None
    for character in text:
        piece, state, matched = state.feed(character.encode(), stops)
        shown += piece
        if matched:
            break
    expected, hit = _cut(text, stops)
    assert bool(matched) == hit
    assert not matched or matched in stops
    assert shown + state.text == expected


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_no_stop_string_is_ever_shown(text: str, stops: list[str]) -> None:
    shown, state, matched = HeldText().feed(text.encode(), stops)
    assert not any(stop in shown for stop in stops)
    assert matched or shown + state.text == text
