"""What a vocabulary is known by: one fingerprint, whoever reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers.models import BPE

from benchmarks.random_qwen import byte_letters
from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.routers.card import read_card
from edgewise.testing.scripted_edge import EOS, ByteTokenizer
from pocket.tokenizer import QWEN2_SPLIT
from tests import models

CONTROL = gguf.TokenType.CONTROL
BYTES = {letter: byte for byte, letter in enumerate(byte_letters())}


@dataclass(frozen=True, eq=False)
class HubTokenizer:
    """Implements `Tokenizer` with the library `tokenizers`, from tokens and merges alone."""

    tokens: Sequence[str]
    merges: Sequence[str]
    special: Mapping[int, str]
    size: int
    eos_ids: frozenset[int] = frozenset()
    chat_template: str | None = None

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        left_right = [(left, right) for left, right in (m.split(" ") for m in self.merges)]
        encoder = tokenizers.Tokenizer(BPE({t: i for i, t in enumerate(self.tokens)}, left_right))
        encoder.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        encoder.decoder = decoders.ByteLevel()
        return encoder

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return self._encoder.encode(text).ids

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        return self.encode(text)

    def piece(self, token: int) -> bytes:
        if token in self.special or token >= len(self.tokens):
            return b""
        return bytes(BYTES[letter] for letter in self.tokens[token])

    def special_text(self, name: str) -> str:
        return ""


def read(path: Path) -> HubTokenizer:
    """The vocabulary of a file, without llama.cpp."""
    fields = gguf.GGUFReader(path).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges: list[str] = fields["tokenizer.ggml.merges"].contents()
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    special = {i: tokens[i] for i, kind in enumerate(kinds) if kind == CONTROL}
    return HubTokenizer(tokens, merges, special, len(tokens))


def by_llama_cpp(path: Path) -> str:
    with LlamaModel(path, threads=1) as model:
        return fingerprint(model.tokenizer)


@pytest.mark.parametrize("role", ["edge", "cloud"])
def test_another_library_reads_the_same_vocabulary(role: str) -> None:
    path = bundled(role)  # type: ignore[arg-type]
    assert by_llama_cpp(path) == fingerprint(read(path))


def test_also_of_a_file_with_few_merges(bpe_path: Path, other_path: Path) -> None:
    assert by_llama_cpp(bpe_path) == fingerprint(read(bpe_path))
    assert by_llama_cpp(other_path) == fingerprint(read(other_path))
    assert by_llama_cpp(bpe_path) != by_llama_cpp(other_path)


def test_the_bundled_router_was_made_for_it() -> None:
    assert read_card(bundled("router")).tokenizer_fingerprint == by_llama_cpp(bundled("edge"))
    said = (bundled("router") / "README.md").read_text()
    assert f"`{by_llama_cpp(bundled('edge'))[:16]}`" in said


@pytest.fixture(scope="module")
def whole() -> HubTokenizer:
    return read(bundled("edge"))


def changed(whole: HubTokenizer, **what: object) -> str:
    return fingerprint(replace(whole, **what))  # type: ignore[arg-type]


class TestWhatCounts:
    @pytest.mark.parametrize("padding", [1, 64, 271])
    def test_padding_does_not(self, whole: HubTokenizer, padding: int) -> None:
        """Qwen2.5-0.5B has 151,936 ids and 32B 152,064; both use 151,665."""
        assert changed(whole, size=whole.size + padding) == fingerprint(whole)

    def test_padding_in_a_file_does_not(self, tmp_path: Path, bpe_path: Path) -> None:
        used = models.byte_level()
        unused = [gguf.TokenType.UNUSED] * 3
        padded = replace(used, tokens=[*used.tokens, *"ΑΒΓ"], kinds=[*used.kinds, *unused])
        path = models.write_transformer(tmp_path / "padded.gguf", padded)
        assert by_llama_cpp(path) == by_llama_cpp(bpe_path)

    def test_names_ends_and_templates_do_not(self, whole: HubTokenizer) -> None:
        """They say when an answer ends and how a prompt is laid out, not what an id means."""
        other = changed(whole, eos_ids=frozenset({4}), chat_template="{{ messages }}")
        assert other == fingerprint(whole)

    def test_the_order_of_merges(self, whole: HubTokenizer) -> None:
        assert changed(whole, merges=whole.merges[::-1]) != fingerprint(whole)

    def test_a_special_token_s_text(self, whole: HubTokenizer) -> None:
        special = {**whole.special, 0: "<|nothing|>"}
        assert changed(whole, special=special) != fingerprint(whole)

    def test_one_special_token_more(self, whole: HubTokenizer) -> None:
        """An id that writes its text and one that does not are two things."""
        last = whole.size - 1
        special = {**whole.special, last: whole.tokens[last]}
        assert changed(whole, special=special) != fingerprint(whole)

    def test_a_special_token_behind_the_padding(self, whole: HubTokenizer) -> None:
        far = whole.size + 9
        other = changed(whole, special={**whole.special, far: "<|far|>"}, size=far + 1)
        assert other != fingerprint(whole)

    def test_two_pieces_that_change_places(self, whole: HubTokenizer) -> None:
        """Of letters that no probe string needs: the pieces themselves show it."""
        tokens = list(whole.tokens)
        a, b = (tokens.index(letter) for letter in list(BYTES)[:2])
        tokens[a], tokens[b] = tokens[b], tokens[a]
        assert changed(whole, tokens=tokens) != fingerprint(whole)

    def test_one_piece_less(self, whole: HubTokenizer) -> None:
        fewer = changed(whole, tokens=whole.tokens[:-1], merges=whole.merges[:-1])
        assert fewer != fingerprint(whole)


class Counted(ByteTokenizer):
    """Counts how often it is read whole."""

    def __init__(self, end: str = "<end>") -> None:
        super().__init__(end)
        self.reads = 0

    def piece(self, token: int) -> bytes:
        self.reads += token == 0
        return super().piece(token)


class TestScripted:
    def test_another_end_is_another_vocabulary(self) -> None:
        assert fingerprint(ByteTokenizer()) == fingerprint(ByteTokenizer())
        assert fingerprint(ByteTokenizer("<stop>")) != fingerprint(ByteTokenizer())
        assert ByteTokenizer("<stop>").special[EOS] == "<stop>"

    def test_a_tokenizer_is_read_once(self) -> None:
        one, other = Counted(), Counted()
        assert len({fingerprint(one), fingerprint(one), fingerprint(other)}) == 1
        assert (one.reads, other.reads) == (1, 1)
