"""What a vocabulary is known by, and which texts are too long for a context.

That all libraries read one vocabulary is in `test_hub_tokenizer`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import CHUNK, fingerprint, require_fitting
from edgewise.errors import ContextOverflow
from edgewise.pair import Pair
from edgewise.prompts import Message
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise
from tests import models

HUGE = " " * (4 << 20)
WORDS = ("word ", " ", "\n", "copper", "é", "<|im_end|>", "42")


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


@pytest.mark.parametrize("which", [*SAME, *OTHERS])
def test_what_counts(which: str) -> None:
    """Qwen2.5-0.5B has 151,936 ids and 32B 152,064; both use 151,665."""
    found = fingerprint((SAME | OTHERS)[which])  # type: ignore[arg-type]
    assert (found == fingerprint(PLAIN)) is (which in SAME)  # type: ignore[arg-type]


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


class Counting(ByteTokenizer):
    """Remembers how much it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.characters: list[int] = []

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.characters.append(len(text))
        return super().encode(text, special=special)


class Wide(Counting):
    """Says that an id may stand for a hundred bytes, so that length alone refuses little."""

    def piece(self, token: int) -> bytes:
        return b"x" * 100 if token == 0 else super().piece(token)


def test_length_alone_refuses_without_tokenising() -> None:
    tokenizer = Counting()
    with pytest.raises(ContextOverflow, match=r"699051.*4096"):
        require_fitting(tokenizer, [HUGE], 4096)
    assert tokenizer.characters == []


def test_tokens_are_counted_no_further_than_the_context_needs() -> None:
    tokenizer = Wide()
    with pytest.raises(ContextOverflow, match="131072"):
        require_fitting(tokenizer, [HUGE], 1 << 17)
    assert tokenizer.characters == [CHUNK] * 4


def test_short_texts_are_not_looked_at() -> None:
    tokenizer = Counting()
    require_fitting(tokenizer, ["a" * (CHUNK // 2)] * 2, 1)
    assert tokenizer.characters == []


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(bundled("edge")) as loaded:
        yield loaded


@given(st.lists(st.sampled_from(WORDS)), st.data())
def test_what_fits_is_never_refused(
    model: LlamaModel, parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts) * data.draw(st.integers(1, 1 + 200_000 // (1 + len("".join(parts)))))
    tokens = len(model.tokenizer.encode(text, special=data.draw(st.booleans())))
    require_fitting(model.tokenizer, [text], tokens + 1)


@pytest.mark.parametrize(
    "asked",
    [HUGE[1:] + "a", [Message("user", HUGE)], [{"role": "user", "content": HUGE}]],
    ids=["text", "message", "mapping"],
)
def test_a_pair_refuses_at_once(asked: object) -> None:
    edge = ScriptedEdge(noise(), tokenizer=(tokenizer := Counting()))
    with Pair(edge) as pair, pytest.raises(ContextOverflow, match="shorten it"):
        pair.ask(asked)  # type: ignore[arg-type]
    assert tokenizer.characters == []
