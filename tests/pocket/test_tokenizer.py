"""The bundled GGUFs split text as the tokenizer that was trained does."""

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
STRANGE = [
    "",
    " ",
    "\n\n x",
    "naïve café",
    "日本語 русский",
    "🙂🙂",
    "a\tb  c",
    "it's 3.14%",
    "\u200b",
]


def reference() -> Tokenizer:
    """The tokenizer that a file's tokens and merges describe."""
    fields = gguf.GGUFReader(bundled("edge")).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("role", ["edge", "cloud"])
def test_llama_cpp_splits_as_trained(role: str) -> None:
    texts = [t for q in pocketqa().questions for t in (q.prompt, q.reference)] + STRANGE
    wanted = reference()
    with LlamaModel(bundled(role), threads=1) as model:  # type: ignore[arg-type]
        for text in texts:
            ids = model.tokenizer.encode(text)
            assert ids == wanted.encode(text).ids
            assert b"".join(map(model.tokenizer.piece, ids)).decode() == text
