"""A real vocabulary: 49,152 ids of byte-level BPE and a published chat template."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.engine import LlamaServer
from edgewise.edge.base import PROBES
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.tokenizer_json import HubTokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.prompts import Message, prompt_ids
from tests.llama_server_process import llama_server

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
MISSING = b"\x04\x06\x13\x14\x16\x1d\xc0\xc1\xf1\xf2" + bytes(range(0xF5, 0x100))
TALKS = (
    [Message("user", "Why is the sky blue?")],
    [Message("system", "Be brief."), Message("user", " Two  spaces\nand 1234 ☃ ")],
    [Message("user", "Hi"), Message("assistant", "Hello."), Message("user", "def f(x): ...")],
)


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2_path, context=64, threads=1, gpu_layers=0) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def hub(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> HubTokenizer:
    """The GGUF's vocabulary as `tokenizer.json`."""
    pytest.importorskip("onnx", reason="pocket.convert needs it")
    from pocket.convert.folders import write_tokenizer
    from pocket.convert.weights import read_vocabulary

    folder = tmp_path_factory.mktemp("smollm2")
    write_tokenizer(folder, read_vocabulary(smollm2_path))
    return HubTokenizer(folder)


def test_one_vocabulary_whoever_holds_it(model: LlamaModel, hub: HubTokenizer) -> None:
    llama = model.tokenizer
    assert hub.size == llama.size == 49_152
    assert fingerprint(hub) == fingerprint(llama)
    assert hub.chat_template == llama.chat_template
    assert hub.eos_ids == llama.eos_ids
    for talk in TALKS:
        assert prompt_ids(hub, talk) == prompt_ids(llama, talk)
    # A vocabulary without its merges would spell letters.
    for text in (PROBES[1], "The capital of France is Paris."):
        assert len(llama.encode(text)) < len(text) / 2


@given(st.text(max_size=40))
def test_text_comes_back(model: LlamaModel, hub: HubTokenizer, text: str) -> None:
    """But for bytes that the vocabulary lacks; where all are there, both libraries' ids are one."""
    data = text.encode()
    spelled = bytes(byte for byte in data if byte not in MISSING)
    ids = [tokenizer.encode(text) for tokenizer in (model.tokenizer, hub)]
    for tokenizer, found in zip((model.tokenizer, hub), ids, strict=True):
        assert b"".join(map(tokenizer.piece, found)) == spelled
    assert ids[0] == ids[1] or spelled != data


def test_no_merge_goes_over_a_byte_that_is_missing(model: LlamaModel, hub: HubTokenizer) -> None:
    """U+4C000 begins with F1, which has no id. The published library merges what lies beside it."""
    text = "\x92\U0004c000"
    assert hub.encode(text) == [141, 40276, 218, 218]
    assert model.tokenizer.encode(text) == [141, 236, 230, 218, 218]


def test_the_template_is_rendered_as_published(model: LlamaModel) -> None:
    written = model.tokenizer.encode(
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
        special=True,
    )
    assert prompt_ids(model.tokenizer, TALKS[0]) == written


@pytest.mark.deep
def test_ids_are_llama_servers(model: LlamaModel, hub: HubTokenizer, smollm2_path: Path) -> None:
    """Which renders by an engine of its own; whichever library reads the ids here."""
    with llama_server(smollm2_path) as url, httpx2.Client(base_url=url, trust_env=False) as server:
        for talk in TALKS:
            said = [{"role": one.role, "content": one.content} for one in talk]
            text = server.post("/apply-template", json={"messages": said}).json()["prompt"]
            asked = {"content": text, "add_special": True, "parse_special": True}
            ids = server.post("/tokenize", json=asked).json()["tokens"]
            assert prompt_ids(model.tokenizer, talk) == ids
        for tokenizer in (model.tokenizer, hub):
            with closing(LlamaServer(url)) as cloud:
                assert "all 49,152 ids" in cloud.check_vocabulary(tokenizer)
