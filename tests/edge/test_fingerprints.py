"""What a vocabulary is known by. That all libraries read one is in `test_hub_tokenizer`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.routers.card import read_card
from tests import models


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """As much of a `Tokenizer` as a fingerprint reads: a piece for each id, and how text is cut."""

    pieces: tuple[bytes, ...] = (b"a", b"b", b"\xce\xb1", b"")
    special: Mapping[int, str] = field(default_factory=lambda: {3: "<end>"})
    size: int = 4
    cut: int = 1
    eos_ids: frozenset[int] = frozenset()
    chat_template: str | None = None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [len(text[at : at + self.cut]) for at in range(0, len(text), self.cut)]

    def piece(self, token: int) -> bytes:
        return self.pieces[token] if token < len(self.pieces) else b""


PLAIN = Vocabulary()
SAME = {
    "padding": replace(PLAIN, size=275),
    "names, ends and templates": replace(PLAIN, eos_ids=frozenset({2}), chat_template="{{ m }}"),
}
OTHERS = {
    "merges": replace(PLAIN, cut=2),
    "a special token's text": replace(PLAIN, special={3: "<stop>"}),
    "a special token more": replace(PLAIN, special={2: "\xce\xb1", 3: "<end>"}),
    "one behind the padding": replace(PLAIN, special={3: "<end>", 9: "<far>"}, size=10),
    "pieces that change places": replace(PLAIN, pieces=(b"b", b"a", *PLAIN.pieces[2:])),
    "a piece less": replace(PLAIN, pieces=(b"a", b"b", b"", b"")),
}


@pytest.mark.parametrize("which", SAME)
def test_what_does_not_count(which: str) -> None:
    """Qwen2.5-0.5B has 151,936 ids and 32B 152,064; both use 151,665."""
    assert fingerprint(SAME[which]) == fingerprint(PLAIN)  # type: ignore[arg-type]


@pytest.mark.parametrize("which", OTHERS)
def test_what_counts(which: str) -> None:
    assert fingerprint(OTHERS[which]) != fingerprint(PLAIN)  # type: ignore[arg-type]


def by_llama_cpp(path: Path) -> str:
    with LlamaModel(path, threads=1) as model:
        return fingerprint(model.tokenizer)


def test_of_files(tmp_path: Path, bpe_path: Path, other_path: Path) -> None:
    used = models.byte_level()
    unused = [gguf.TokenType.UNUSED] * 3
    padded = replace(used, tokens=[*used.tokens, *"ΑΒΓ"], kinds=[*used.kinds, *unused])
    turned = models.byte_level(("l o", "l l"))
    for name, vocabulary, same in (("padded", padded, True), ("turned", turned, False)):
        path = models.write_transformer(tmp_path / f"{name}.gguf", vocabulary)
        assert (by_llama_cpp(path) == by_llama_cpp(bpe_path)) is same
    assert by_llama_cpp(bpe_path) != by_llama_cpp(other_path)


def test_the_bundled_router_was_made_for_it() -> None:
    assert read_card(bundled("router")).tokenizer_fingerprint == by_llama_cpp(bundled("edge"))
