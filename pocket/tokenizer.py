"""Byte-level BPEs of the pocket models and their chat templates.

The edge models and their cloud share `PAIR`; `OTHER` is that of a cloud from another house: fewer
entries, another pre-tokenizer, other special tokens and another template.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "qwen2": [
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "smollm": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
}


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer is made by.

    `pre` is llama.cpp's name of the pre-tokenizer: in both digits stand alone and all 256 bytes
    exist. A message is `start`, its role, `middle`, its text, `end` and `after`; of these the
    special tokens are single ids, `end` among them.
    """

    entries: int
    pre: Literal["qwen2", "smollm"]
    special: tuple[str, ...]
    start: str
    middle: str
    end: str
    after: str = ""

    @property
    def chat_template(self) -> str:
        """In Jinja, as GGUF files carry it."""
        opens = f"{_quoted(self.start)} + message['role'] + {_quoted(self.middle)}"
        closes = _quoted(self.end + self.after)
        assistant = _quoted(f"{self.start}assistant{self.middle}")
        return (
            "{%- for message in messages -%}"
            f"{{{{- {opens} + message['content'] + {closes} -}}}}"
            "{%- endfor -%}"
            f"{{%- if add_generation_prompt -%}}{{{{- {assistant} -}}}}{{%- endif -%}}"
        )

    def chat(self, prompt: str) -> str:
        """What the template makes of one user message and an open answer."""
        asked = f"{self.start}user{self.middle}{prompt}{self.end}{self.after}"
        return f"{asked}{self.start}assistant{self.middle}"

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the merges; the special tokens take the first ids, then come the bytes."""
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[self.pre])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.entries,
            special_tokens=[AddedToken(token, special=True) for token in self.special],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer


def _quoted(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


PAIR = Vocabulary(
    entries=4096,
    pre="qwen2",
    special=(END_OF_TEXT, "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    start="<|",
    middle="|>",
    end="<|end|>",
)
OTHER = Vocabulary(
    entries=3072,
    pre="smollm",
    special=(END_OF_TEXT, "<|im_start|>", "<|im_end|>"),
    start="<|im_start|>",
    middle="\n",
    end="<|im_end|>",
    after="\n",
)
