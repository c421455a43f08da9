"""Folders as hubs have them, of the tiny vocabularies of `tests.models` and of GGUF files."""

import json
from collections.abc import Callable
from pathlib import Path

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from pocket.convert.weights import Reader, read_vocabulary
from pocket.tokenizer import SPLITS
from tests.models import Vocabulary

SPACE, SCORES = "▁", "tokenizer.ggml.scores"


def vocabulary_of(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, without llama.cpp."""
    read = read_vocabulary(path)
    bos = None if read.bos is None else read.tokens[read.bos]
    return Vocabulary(
        read.model,
        read.tokens,
        [TokenType(kind) for kind in read.kinds],
        merges=read.merges,
        scores=field.contents() if (field := Reader(path).fields.get(SCORES)) else (),
        bos=bos,
        eos=read.tokens[read.eos],
        template=read.template,
    )


def write_tokenizer(folder: Path, vocabulary: Vocabulary, *, pre: str = "qwen2") -> Path:
    """`tokenizer.json` and `tokenizer_config.json` as transformers saves them."""
    folder.mkdir(exist_ok=True)
    tokenizer = bytes_only(vocabulary, pre) if vocabulary.model == "gpt2" else pieces(vocabulary)
    for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind not in (TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED):
            special = kind != TokenType.USER_DEFINED
            tokenizer.add_tokens([AddedToken(text, special=special, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": vocabulary.bos,
        "eos_token": vocabulary.eos,
        "chat_template": vocabulary.template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def bytes_only(vocabulary: Vocabulary, pre: str) -> Tokenizer:
    """Byte-level BPE, cut as llama.cpp's pre-tokenizer `pre` cuts it."""
    kinds = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    used = {text: token for token, (text, kind) in enumerate(kinds) if kind != TokenType.UNUSED}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    tokenizer = Tokenizer(BPE(vocab=used, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[pre])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pieces(vocabulary: Vocabulary) -> Tokenizer:
    """Sentencepiece's BPE as transformers converts it: merges by the score of what they make."""
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    scored = sorted(
        (-vocabulary.scores[token], text[:cut], text[cut:])
        for text, token in ids.items()
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    )
    merges = [(left, right) for _, left, right in scored]
    fallback = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges, **fallback))
    begin = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(begin)
    bos = str(vocabulary.bos)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B:1", special_tokens=[(bos, ids[bos])]
    )
    end = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*end, decoders.Strip(" ", 1, 0)])
    return tokenizer


def described(folder: Path, **change: object) -> Path:
    """With other entries in its `config.json`."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return folder


def shortened(folder: Path) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    return folder


def instead(name: str, data: bytes) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder

    return change


def without(name: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        (folder / name).unlink()
        return folder

    return change
