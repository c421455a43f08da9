"""Results on disk: only ever appended to, whole lines or none, and never somebody else's."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise_lab.evaluation.store import MANIFEST, append, lock_folder, read


class Note(msgspec.Struct, frozen=True):
    """A line."""

    text: str


def filled(folder: Path, *texts: str) -> Path:
    path = folder / "notes.jsonl"
    for text in texts:
        append(path, Note(text))
    return path


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be written; what is there can be cut."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_cut_line_is_dropped_without_writing_the_others_again(tmp_path: Path) -> None:
    """A full disk, or a crash in the middle, must not cost what was whole."""
    path = filled(tmp_path, "a", "b")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"text": "c')
    inode = path.stat().st_ino
    with full_disk():
        assert read(path, Note) == [Note("a"), Note("b")]
    assert path.read_bytes() == whole
    assert path.stat().st_ino == inode
    append(path, Note("c"))
    assert read(path, Note) == [Note("a"), Note("b"), Note("c")]


@given(cut=st.integers(0, 200), texts=st.lists(st.text(max_size=8), max_size=6))
def test_cut_anywhere_a_run_log_holds_what_was_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, texts: list[str]
) -> None:
    path = filled(tmp_path_factory.mktemp("log"), *texts)
    if not texts:
        return
    data = path.read_bytes()
    os.truncate(path, min(cut, len(data)))
    held = read(path, Note)
    assert held == [Note(text) for text in texts[: data[:cut].count(b"\n")]]
    append(path, Note("next"))
    assert read(path, Note) == [*held, Note("next")]


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b'{"text": 1}\n', b'{"text": "\xff"}\n'])
def test_a_damaged_line_is_named_and_left_alone(tmp_path: Path, line: bytes) -> None:
    path = filled(tmp_path, "a")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(UsageError, match=r"notes\.jsonl'"):
        read(path, Note)
    assert path.read_bytes().endswith(line)


def test_a_folder_belongs_to_what_claimed_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lock_folder(folder, {"edge": "x"})
    lock_folder(folder, {"edge": "x"})
    for other in ({"edge": "y"}, {}, {"edge": "x", "more": 1}):
        with pytest.raises(UsageError, match="name another folder") as caught:
            lock_folder(folder, other)
        assert caught.value.setting == "out"


def test_a_claim_that_was_cut_claims_nothing(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(UsageError, match="File too large"):
        lock_folder(tmp_path, {"edge": "x"})
    assert not (tmp_path / MANIFEST).exists()
    lock_folder(tmp_path, {"edge": "y"})


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        lock_folder(tmp_path / "file", {})
