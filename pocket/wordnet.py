"""WordNet 3.0's noun files, as Debian's `wordnet-base` installs them (formats: wndb(5WN))."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path("/usr/share/wordnet")


@dataclass(frozen=True)
class Synset:
    """One meaning; `parents` are hypernyms, `wholes` what it is a part of (offsets)."""

    lexfile: str
    words: tuple[str, ...]
    parents: tuple[str, ...]
    wholes: tuple[str, ...]


def _synset(line: str) -> tuple[str, Synset]:
    fields = line.split(" | ")[0].split()
    count = int(fields[3], 16)
    pointers = fields[5 + 2 * count :]
    pairs = [(pointers[i], pointers[i + 1]) for i in range(0, len(pointers) - 3, 4)]
    return fields[0], Synset(
        fields[1],
        tuple(fields[4 : 4 + 2 * count : 2]),
        tuple(offset for symbol, offset in pairs if symbol == "@"),
        tuple(offset for symbol, offset in pairs if symbol == "#p"),
    )


class WordNet:
    """Nouns, their meanings (most frequent first) and how often they are used."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.synsets = dict(map(_synset, self._lines("data.noun")))

    def _lines(self, name: str) -> Iterator[str]:
        path = self.folder / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: apt-get install wordnet-base")
        for line in path.read_text(encoding="ascii").splitlines():
            if not line.startswith(" "):
                yield line

    @cached_property
    def senses(self) -> dict[str, list[str]]:
        """Noun to synset offsets, most frequent sense first."""
        return {
            fields[0]: [field for field in fields[6:] if len(field) == 8]
            for fields in map(str.split, self._lines("index.noun"))
        }

    @cached_property
    def usage(self) -> Counter[str]:
        """How often each noun occurs in WordNet's sense-tagged texts."""
        usage: Counter[str] = Counter()
        for key, _, count in map(str.split, self._lines("cntlist.rev")):
            word, _, sense = key.partition("%")
            if sense.startswith("1"):
                usage[word] += int(count)
        return usage

    def first(self, word: str) -> Synset:
        """The most frequent meaning of a noun."""
        return self.synsets[self.senses[word][0]]

    def plainly(self, offset: str) -> str | None:
        """The word that by itself means `offset`: its first word, if that is its first sense."""
        word = self.synsets[offset].words[0]
        return word if self.senses.get(word, [""])[0] == offset else None

    def above(self, word: str) -> frozenset[str]:
        """Every word above any sense of a noun, and the synonyms on the way."""
        seen: set[str] = set()
        todo = list(self.senses[word])
        while todo:
            offset = todo.pop()
            if offset not in seen:
                seen.add(offset)
                todo.extend(self.synsets[offset].parents)
        return frozenset(w for offset in seen for w in self.synsets[offset].words)
