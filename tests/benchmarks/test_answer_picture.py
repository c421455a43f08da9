"""The README's picture is of an answer that the bundled pair writes."""

from benchmarks.answer_picture import PICTURE, picture


def test_the_picture_is_what_the_pair_writes() -> None:
    drawn = picture()
    assert drawn == PICTURE.read_text(encoding="utf-8")
    assert len(drawn) < 300_000
