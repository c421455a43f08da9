"""Tokenizers of several houses, for whatever stands between two of them."""

import json
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edgewise.addresses import bundled
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.tokenizer_json import HubTokenizer
from pocket.tokenizer import OTHER
from tests import models
from tests.smollm2_file import smollm2_file


def write_other(folder: Path) -> Path:
    """A folder with a byte-level BPE of another house, of few words."""
    folder.mkdir(exist_ok=True)
    words = "the small model writes and the large one reads; 日本語 русский naïve\n"
    OTHER.train([*PROBES, words * 3]).save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": OTHER.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def vocabularies(folder: Path) -> Generator[Mapping[str, Tokenizer]]:
    """By name; those of GGUF files live as long as the context."""
    files = {
        "bundled": bundled("edge"),
        "bytes": models.write_byte_level(folder / "bytes.gguf"),
        "pieces": models.write_sentencepiece(folder / "pieces.gguf"),
    }
    if (real := smollm2_file()) is not None:
        files["smollm2"] = real
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(LlamaModel(path, threads=1, context=32))
            for name, path in files.items()
        }
        found: dict[str, Tokenizer] = {name: one.tokenizer for name, one in opened.items()}
        yield {**found, "other": HubTokenizer(write_other(folder / "other"))}
