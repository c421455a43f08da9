"""The user's own words: names, projects, whatever shall not leave."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from edgewise.addresses import from_home
from edgewise.cloud.bridge.word_boundary import is_unspaced
from edgewise.cloud.redaction.base import Span
from edgewise.cloud.redaction.normal import Normal
from edgewise.errors import UsageError

MOST = 10_000
LONGEST = 200
MAX_FILE = 1 << 20
"""Of words, in characters each, and of their file in bytes."""

_RUN = re.compile(r"\w+")


def words_of(given: str) -> tuple[str, ...]:
    """Words separated by commas, or those of a file, one a line: `@words.txt`.

    Raises `UsageError`.
    """
    listed = _lines(given[1:]) if given.startswith("@") else given.split(",")
    found = tuple(dict.fromkeys(" ".join(one.split()) for one in listed if one.strip()))
    if not found:
        raise UsageError("redact-words names no word", hint="name one, or leave it out")
    for word in found:
        if not 2 <= len(word) <= LONGEST:
            raise UsageError(
                f"redact-words names {word[:LONGEST]!r}, and a word has 2 to {LONGEST} characters"
            )
    if len(found) > MOST:
        raise UsageError(f"redact-words names more than {MOST} words", hint="shorten the list")
    return found


def _lines(name: str) -> list[str]:
    path = from_home(name)
    try:
        if not path.is_file():
            raise UsageError(f"redact-words names {name!r}, and there is no such file")
        if path.stat().st_size > MAX_FILE:
            raise UsageError(f"The words in {name!r} have more than {MAX_FILE} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"The words in {name!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The words in {name!r} are no valid UTF-8.") from error


class Words:
    """Finds them whole, however they are capitalised and whatever blanks are between."""

    labels = ("WORD",)

    def __init__(self, words: Sequence[str]) -> None:
        # Looked up by their first run of letters, but in scripts that have no spaces.
        self._by_run: dict[str, list[tuple[int, re.Pattern[str]]]] = defaultdict(list)
        self._anywhere: list[re.Pattern[str]] = []
        for word in (Normal(one).text for one in words):
            run = _RUN.search(word)
            if run is None or any(map(is_unspaced, word)):
                self._anywhere.append(_pattern(word))
            else:
                self._by_run[run[0].lower()].append((run.start(), _pattern(word)))

    def find(self, text: str) -> Iterator[Span]:
        for run in _RUN.finditer(text) if self._by_run else ():
            for before, pattern in self._by_run.get(run[0].lower(), ()):
                found = pattern.match(text, max(0, run.start() - before))
                if found is not None:
                    yield Span(found.start(), found.end(), "WORD")
        for pattern in self._anywhere:
            for found in pattern.finditer(text):
                yield Span(found.start(), found.end(), "WORD")


def _pattern(word: str) -> re.Pattern[str]:
    spelled = r"\s{1,8}".join(map(re.escape, word.split()))
    begins = r"(?<!\w)" if _RUN.match(word) and not is_unspaced(word[0]) else ""
    ends = r"(?!\w)" if _RUN.match(word[-1]) and not is_unspaced(word[-1]) else ""
    return re.compile(f"{begins}{spelled}{ends}", re.IGNORECASE)
