"""The facts the pair may know: WordNet kinds, capitals, chemical symbols; common ones first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Relation = Literal["kind", "capital", "element"]

WORDNET = Path("/usr/share/wordnet")
DATA = Path(__file__).parent / "data"
# Lexicographer files: animal, artifact, food, object, plant, substance (lexnames(5WN)).
THINGS = frozenset({"05", "06", "13", "17", "20", "27"})
# Hypernyms that fit nearly anything make questions with several right choices.
VAGUE = frozenset(
    [
        "artifact",
        "object",
        "substance",
        "structure",
        "material",
        "device",
        "area",
        "support",
        "part",
        "case",
        "thing",
        "creation",
        "compound",
        "instrument",
        "equipment",
        "unit",
        "group",
        "agent",
        "work",
        "body",
    ]
)
KINDS = 1_200
SMALLEST_GROUP = 4


@dataclass(frozen=True)
class Fact:
    """One thing a model can know: `subject` stands in `relation` to `answer`."""

    relation: Relation
    subject: str
    answer: str
    group: str  # distractors come from the same group first
    also_true: frozenset[str] = frozenset()  # answers that must not be offered as wrong choices


@dataclass(frozen=True)
class Synset:
    lexfile: str
    words: tuple[str, ...]
    hypernyms: tuple[str, ...]


def _synset(line: str) -> tuple[str, Synset]:
    """Parse one line of data.noun (format: wndb(5WN))."""
    fields = line.split(" | ")[0].split()
    count = int(fields[3], 16)
    words = tuple(fields[4 : 4 + 2 * count : 2])
    pointers = fields[5 + 2 * count :]
    parents = tuple(pointers[i + 1] for i in range(0, len(pointers), 4) if pointers[i] == "@")
    return fields[0], Synset(fields[1], words, parents)


def _lines(name: str, folder: Path) -> Iterator[str]:
    path = folder / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: apt-get install wordnet-base")
    for line in path.read_text(encoding="ascii").splitlines():
        if not line.startswith(" "):
            yield line


def _senses(folder: Path) -> dict[str, list[str]]:
    """Noun to synset offsets, most frequent sense first."""
    return {
        fields[0]: [field for field in fields[6:] if len(field) == 8]
        for fields in map(str.split, _lines("index.noun", folder))
    }


def _usage(folder: Path) -> Counter[str]:
    """How often each noun occurs in WordNet's sense-tagged texts."""
    usage: Counter[str] = Counter()
    for key, _, count in map(str.split, _lines("cntlist.rev", folder)):
        word, _, sense = key.partition("%")
        if sense.startswith("1"):
            usage[word] += int(count)
    return usage


def _true_answers(offsets: list[str], synsets: dict[str, Synset]) -> frozenset[str]:
    """Every word above any sense of a noun, and the synonyms on the way."""
    seen: set[str] = set()
    todo = list(offsets)
    while todo:
        offset = todo.pop()
        if offset not in seen:
            seen.add(offset)
            todo.extend(synsets[offset].hypernyms)
    return frozenset(word for offset in seen for word in synsets[offset].words)


def _plain(word: str, longest: int = 10) -> bool:
    return word.isalpha() and word.islower() and 3 <= len(word) <= longest


def kinds(folder: Path = WORDNET, limit: int = KINDS) -> list[Fact]:
    """The `limit` most used nouns with the hypernym of their first sense."""
    synsets = dict(map(_synset, _lines("data.noun", folder)))
    senses, usage = _senses(folder), _usage(folder)
    found: list[Fact] = []
    for word, offsets in senses.items():
        first = synsets[offsets[0]]
        if first.lexfile not in THINGS or not first.hypernyms or word not in first.words:
            continue
        answer = synsets[first.hypernyms[0]].words[0]
        if answer in VAGUE or not (_plain(word) and _plain(answer)):
            continue
        if word not in answer and answer not in word:
            true = _true_answers(offsets, synsets)
            found.append(Fact("kind", word, answer, first.lexfile, true))
    sizes = Counter(fact.answer for fact in found)
    common = [fact for fact in found if sizes[fact.answer] >= SMALLEST_GROUP]
    common.sort(key=lambda f: (-usage[f.subject], -len(senses[f.subject]), f.subject))
    return common[:limit]


def listed(relation: Relation, name: str) -> list[Fact]:
    """Facts of a two-column file in pocket/data, in the order of the file."""
    rows = (line.split("\t") for line in (DATA / name).read_text(encoding="utf-8").splitlines())
    return [Fact(relation, subject, answer, relation) for subject, answer in rows]


def all_facts(folder: Path = WORDNET) -> list[Fact]:
    """All facts, common ones first: each source is spread evenly over the ranks."""
    sources = [
        kinds(folder),
        listed("capital", "capitals.tsv"),
        listed("element", "elements.tsv"),
    ]
    ranked = [
        (i / len(facts), n, f) for n, facts in enumerate(sources) for i, f in enumerate(facts)
    ]
    return [fact for _, _, fact in sorted(ranked, key=lambda item: item[:2])]
