"""Text that cannot fit is refused before it is tokenised; what can fit never is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import CHUNK, require_fitting, require_short
from edgewise.errors import ContextOverflow
from edgewise.pair import Pair
from edgewise.prompts import Message
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise

HUGE = " " * (4 << 20)
WORDS = ("word ", " ", "\n", "copper", "é", "<|im_end|>", "42")


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
    for check in (require_short, require_fitting):
        with pytest.raises(ContextOverflow, match=r"699051.*4096"):
            check(tokenizer, [HUGE], 4096)
    assert tokenizer.characters == []


def test_tokens_are_counted_no_further_than_the_context_needs() -> None:
    tokenizer = Wide()
    require_short(tokenizer, [HUGE], 1 << 17)
    with pytest.raises(ContextOverflow, match="131072"):
        require_fitting(tokenizer, [HUGE], 1 << 17)
    assert tokenizer.characters == [CHUNK] * 4


def test_short_texts_are_not_looked_at() -> None:
    tokenizer = Counting()
    require_fitting(tokenizer, ["a" * (CHUNK // 2)] * 2, 1)
    assert tokenizer.characters == []


@given(
    st.lists(st.sampled_from(["word ", " ", "\n", "copper", "é", "<|im_end|>", "42"])), st.data()
)
def test_what_fits_is_never_refused(parts: list[str], data: st.DataObject) -> None:
    model = _model()
    text = "".join(parts) * data.draw(st.integers(1, 1 + 200_000 // (1 + len("".join(parts)))))
    tokens = len(model.tokenizer.encode(text, special=data.draw(st.booleans())))
    require_fitting(model.tokenizer, [text], tokens + 1)


def _model(loaded: list[LlamaModel] = []) -> LlamaModel:  # noqa: B006
    """Loaded once."""
    if not loaded:
        loaded.append(LlamaModel(bundled("edge")))
    return loaded[0]


@pytest.mark.parametrize(
    "asked",
    [HUGE + "a", [Message("user", HUGE)], [{"role": "user", "content": HUGE}]],
    ids=["text", "message", "mapping"],
)
def test_a_pair_refuses_at_once(asked: object) -> None:
    edge = ScriptedEdge(noise(), tokenizer=(tokenizer := Counting()))
    with Pair(edge) as pair, pytest.raises(ContextOverflow, match="shorten it"):
        pair.ask(asked)  # type: ignore[arg-type]
    assert tokenizer.characters == []
