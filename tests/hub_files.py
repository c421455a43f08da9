"""Folders as hubs have them, of the tiny vocabularies of `tests.models` and of GGUF files."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf

from pocket.tokenizer import QWEN2_SPLIT
from tests.models import Vocabulary

SPACE = "▁"


def vocabulary_of(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, without llama.cpp."""
    fields = gguf.GGUFReader(path).fields

    def value(name: str, default: object = None) -> object:
        field = fields.get(f"tokenizer.{name}")
        return default if field is None else field.contents()

    tokens: list[str] = value("ggml.tokens")  # type: ignore[assignment]
    kinds: list[int] = value("ggml.token_type")  # type: ignore[assignment]
    bos = value("ggml.bos_token_id") if value("ggml.add_bos_token") else None
    return Vocabulary(
        str(value("ggml.model")),
        tokens,
        [gguf.TokenType(kind) for kind in kinds],
        merges=value("ggml.merges", ()),  # type: ignore[arg-type]
        scores=value("ggml.scores", ()),  # type: ignore[arg-type]
        bos=None if bos is None else tokens[bos],  # type: ignore[call-overload]
        eos=tokens[value("ggml.eos_token_id")],  # type: ignore[call-overload]
        template=value("chat_template"),  # type: ignore[arg-type]
    )


def write_tokenizer(folder: Path, vocabulary: Vocabulary, *, pre: str = "qwen2") -> Path:
    """`tokenizer.json` and `tokenizer_config.json` as transformers saves them."""
    folder.mkdir(exist_ok=True)
    bytes_only = vocabulary.model == "gpt2"
    described = described_bytes(vocabulary, pre) if bytes_only else described_pieces(vocabulary)
    kinds = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    normal = (gguf.TokenType.NORMAL, gguf.TokenType.BYTE, gguf.TokenType.UNUSED)
    added = [
        {
            "id": token,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != gguf.TokenType.USER_DEFINED,
        }
        for token, (text, kind) in enumerate(kinds)
        if kind not in normal
    ]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(whole | described))
    config = {
        "bos_token": vocabulary.bos,
        "eos_token": vocabulary.eos,
        "chat_template": vocabulary.template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def described_bytes(vocabulary: Vocabulary, pre: str) -> dict[str, object]:
    """Byte-level BPE, cut as llama.cpp's pre-tokenizer `pre` cuts it."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    cuts: dict[str, object] = {
        "qwen2": {
            "type": "Split",
            "pattern": {"Regex": QWEN2_SPLIT},
            "behavior": "Isolated",
            "invert": False,
        },
        "smollm": {"type": "Digits", "individual_digits": True},
    }
    used = {
        text: token
        for token, text in enumerate(vocabulary.tokens)
        if vocabulary.kinds[token] != gguf.TokenType.UNUSED
    }
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [cuts[pre], level | {"use_regex": pre == "smollm"}],
        },
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": _bpe(used, [merge.split(" ") for merge in vocabulary.merges]),
    }


def described_pieces(vocabulary: Vocabulary) -> dict[str, object]:
    """Sentencepiece's BPE as transformers converts it: merges by the score of what they make."""
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    merges = [
        (-vocabulary.scores[token], text[:cut], text[cut:])
        for text, token in ids.items()
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    space = {"pattern": {"String": SPACE}, "content": " "}
    begin = [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    end = [
        {"type": "Replace", **space},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    bos = {"SpecialToken": {"id": vocabulary.bos, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "normalizer": {"type": "Sequence", "normalizers": begin},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                vocabulary.bos: {
                    "id": vocabulary.bos,
                    "ids": [ids[str(vocabulary.bos)]],
                    "tokens": [vocabulary.bos],
                }
            },
        },
        "decoder": {"type": "Sequence", "decoders": end},
        "model": _bpe(ids, [[left, right] for _, left, right in sorted(merges)], fallback=True),
    }


def _bpe(
    ids: dict[str, int], merges: list[list[str]], *, fallback: bool = False
) -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>" if fallback else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fallback,
        "byte_fallback": fallback,
        "ignore_merges": False,
        "vocab": ids,
        "merges": merges,
    }


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
