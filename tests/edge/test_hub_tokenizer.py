"""A tokenizer by itself: a hub model's says what llama.cpp says of a GGUF of the same model."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from edgewise.addresses import bundled
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.edge.tokenizer_json import HubTokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import AddressError, ModelError, UsageError
from edgewise.prompts import Message, prompt_ids
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests import models
from tests.hub import Hub, Repository, in_a_process, serving
from tests.hub_files import vocabulary_of, write_tokenizer

TEXTS = (
    *PROBES,
    "",
    " ",
    "<|im_start|>user\nwho? <|im_end|>\n </s> c <s><|end|>",
    "<unk> <0x41> ▁a Ġthe \x00 \ufffd",
    "\n\n x naïve 日本語 🙂🙂 a\tb  c it's 3.14% \u200b",
    *(text for one in pocketqa().questions for text in (one.prompt, one.reference)),
)
TALK = (
    Message("system", "Be brief."),
    Message("user", "Say <|im_end|> and <|im_start|>, </s> or <|end|>."),
)


def files(name: str, folder: Path) -> tuple[Path, str]:
    """A GGUF, and how its text is cut."""
    if name == "bundled":
        return bundled("edge"), "qwen2"
    write = {"bytes": models.write_byte_level, "pieces": models.write_sentencepiece}[name]
    return write(folder / "model.gguf"), "qwen2"


@pytest.fixture(scope="module", params=["bundled", "bytes", "pieces"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[HubTokenizer, Tokenizer]]:
    folder = tmp_path_factory.mktemp("hub")
    path, pre = files(request.param, folder)
    vocabulary = vocabulary_of(path)
    write_tokenizer(folder / "hub", vocabulary, pre=pre)
    with LlamaModel(path, threads=1, context=64) as model:
        yield HubTokenizer(folder / "hub", size=len(vocabulary.tokens)), model.tokenizer


class TestTheSameAsTheGguf:
    def test_one_fingerprint(self, both: tuple[HubTokenizer, Tokenizer]) -> None:
        hub, llama = both
        assert fingerprint(hub) == fingerprint(llama)

    def test_every_piece(self, both: tuple[HubTokenizer, Tokenizer]) -> None:
        hub, llama = both
        assert hub.size == llama.size
        assert all(hub.piece(i) == llama.piece(i) for i in range(hub.size))

    @pytest.mark.parametrize("special", [False, True])
    def test_ids(self, both: tuple[HubTokenizer, Tokenizer], special: bool) -> None:
        hub, llama = both
        for text in TEXTS:
            ids = llama.encode(text, special=special)
            assert hub.encode(text, special=special) == ids
            assert hub.encode_prompt(text, special=special) == llama.encode_prompt(
                text, special=special
            )

    def test_special_tokens_ends_and_template(self, both: tuple[HubTokenizer, Tokenizer]) -> None:
        hub, llama = both
        assert hub.special == llama.special
        assert hub.eos_ids == llama.eos_ids
        assert hub.chat_template == llama.chat_template
        assert hub.special_text("eos") == llama.special_text("eos")

    def test_a_conversation(self, both: tuple[HubTokenizer, Tokenizer]) -> None:
        """In which a user writes control tokens: the template's own alone become ids."""
        hub, llama = both
        assert prompt_ids(hub, TALK) == prompt_ids(llama, TALK)


Change = Callable[[dict[str, Any]], None]


def changed(folder: Path, change: Change, file: str = "tokenizer.json") -> HubTokenizer:
    """The tiny byte-level tokenizer with something else in one of its files."""
    path = write_tokenizer(folder / "hub", models.byte_level()) / file
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))
    return HubTokenizer(folder / "hub")


def added(*texts: str, special: bool = False) -> Change:
    """Tokens beyond the vocabulary's."""

    def add(described: dict[str, Any]) -> None:
        last = described["added_tokens"][-1]
        for number, text in enumerate(texts, 1):
            more = last | {"id": last["id"] + number, "content": text, "special": special}
            described["added_tokens"].append(more)

    return add


class TestTokens:
    def test_a_user_defined_one_is_read_in_any_text(self, tmp_path: Path) -> None:
        tokenizer = changed(tmp_path, added("<think>"))
        think = tokenizer.size - 1
        assert tokenizer.encode("a<think>b").count(think) == 1
        assert tokenizer.piece(think) == b"<think>"
        assert think not in tokenizer.special

    def test_one_that_looks_special_is(self, tmp_path: Path) -> None:
        """Qwen calls `<|fim_prefix|>` ordinary, and llama.cpp's converter a control token."""
        tokenizer = changed(tmp_path, added("<|fim_prefix|>"))
        fim = tokenizer.size - 1
        assert fim in tokenizer.special
        assert fim not in tokenizer.encode("<|fim_prefix|>")
        assert tokenizer.encode("<|fim_prefix|>", special=True) == [fim]

    def test_one_that_merges_make_is_spelled_out(self, tmp_path: Path) -> None:
        whole = models.byte_level([*models.MERGES, "< s", "<s >"])
        kinds = list(whole.kinds)
        kinds[whole.tokens.index("<s>")] = gguf.TokenType.CONTROL
        tokenizer = HubTokenizer(write_tokenizer(tmp_path, replace(whole, kinds=kinds)))
        ids = tokenizer.encode("a<s>b")
        assert not set(ids) & set(tokenizer.special)
        assert b"".join(map(tokenizer.piece, ids)) == b"a<s>b"

    @pytest.mark.parametrize("padding", [1, 271])
    def test_padding_writes_nothing(self, tmp_path: Path, padding: int) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        plain = HubTokenizer(folder)
        padded = HubTokenizer(folder, size=plain.size + padding)
        assert fingerprint(padded) == fingerprint(plain)
        assert padded.piece(padded.size - 1) == b""
        with pytest.raises(UsageError, match=str(padded.size - 1)):
            padded.piece(padded.size)

    def test_more_ids_than_logits(self, tmp_path: Path) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        with pytest.raises(ModelError, match=r"267.*200"):
            HubTokenizer(folder, size=200)

    def test_padding_and_truncation_of_the_file_are_left_out(self, tmp_path: Path) -> None:
        def pad(described: dict[str, Any]) -> None:
            described["truncation"] = {
                "direction": "Right",
                "max_length": 1,
                "strategy": "LongestFirst",
                "stride": 0,
            }
            described["padding"] = {
                "strategy": {"Fixed": 1 << 40},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "!",
            }

        assert len(changed(tmp_path, pad).encode("a b c")) == 5

    def test_threads_do_not_change_what_others_read(self, tmp_path: Path) -> None:
        tokenizer = HubTokenizer(write_tokenizer(tmp_path, models.byte_level()))
        wanted = {s: tokenizer.encode("<|im_end|>", special=s) for s in (False, True)}

        def read(special: bool) -> bool:
            seen = (tokenizer.encode("<|im_end|>", special=special) for _ in range(200))
            return all(ids == wanted[special] for ids in seen)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, [True, False, True, False]))


class TestBeside:
    def configured(self, folder: Path, **what: object) -> HubTokenizer:
        return changed(folder, lambda found: found.update(what), "tokenizer_config.json")

    def test_templates_by_name(self, tmp_path: Path) -> None:
        named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
        assert self.configured(tmp_path, chat_template=named).chat_template == "D"
        tools = [*named, {"name": "tool_use", "template": "U"}]
        assert self.configured(tmp_path, chat_template=tools).tool_template == "U"
        assert self.configured(tmp_path, chat_template=named[:1]).chat_template == "T"
        assert self.configured(tmp_path, chat_template=[]).chat_template is None

    def test_a_template_s_own_file_comes_first(self, tmp_path: Path) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        (folder / "chat_template.jinja").write_text("own")
        assert HubTokenizer(folder).chat_template == "own"
        (folder / "chat_template.jinja").write_text("own", encoding="utf-8-sig")
        data = (folder / "tokenizer.json").read_bytes()
        (folder / "tokenizer.json").write_bytes(b"\xef\xbb\xbf" + data)
        assert HubTokenizer(folder).chat_template == "own"

    def test_whether_a_bos_begins_a_text(self, tmp_path: Path) -> None:
        spm = write_tokenizer(tmp_path / "spm", models.sentencepiece())
        assert HubTokenizer(spm).encode_prompt("") == [1]
        config = json.loads((spm / "tokenizer_config.json").read_text())
        (spm / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
        assert HubTokenizer(spm).encode_prompt("") == []
        told = {"add_bos_token": True, "bos_token": {"content": models.END}}
        first = self.configured(tmp_path, **told).encode_prompt("a")[0]
        assert self.configured(tmp_path).special[first] == models.END

    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    @pytest.mark.parametrize("ends", [3, [3, 5], [3, 1 << 40]])
    def test_ends_that_the_model_names(
        self, tmp_path: Path, file: str, ends: int | list[int]
    ) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        (folder / file).write_text(json.dumps({"eos_token_id": ends, "vocab_size": 300}))
        known = {token for token in ([ends] if isinstance(ends, int) else ends) if token < 267}
        assert HubTokenizer(folder).eos_ids == HubTokenizer(folder).eos_ids | known

    def test_nothing_beside_it(self, tmp_path: Path) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        (folder / "tokenizer_config.json").unlink()
        tokenizer = HubTokenizer(folder)
        assert tokenizer.chat_template is None
        assert tokenizer.special_text("bos") == tokenizer.special_text("eos") == ""
        assert {tokenizer.special[i] for i in tokenizer.eos_ids} == {models.END, models.TURN}


def wordpiece(described: dict[str, Any]) -> None:
    model = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##"}
    described["model"] = model | {"max_input_chars_per_word": 9, "vocab": {"a": 0}}
    described["pre_tokenizer"] = described["decoder"] = None


def growing(described: dict[str, Any]) -> None:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    described["normalizer"] = {"type": "Sequence", "normalizers": [double] * 40}


BAD: dict[str, tuple[Change, str]] = {
    "another kind": (wordpiece, "WordPiece"),
    "a text that grows": (growing, "16 times"),
    "no model": (lambda found: found.pop("model"), "is not a tokenizer"),
    "a model of nothing": (lambda found: found.update(model=[1]), "is not a tokenizer"),
    "merges of nothing": (lambda found: found["model"].update(merges=[["q", "zz"]]), "cannot load"),
    "an unknown kind": (lambda found: found["model"].update(type="Sevenfold"), "cannot load"),
    "ids that are none": (lambda found: found["model"].update(vocab={"a": -1}), "cannot load"),
}


class TestBadFiles:
    @pytest.mark.parametrize(("change", "told"), BAD.values(), ids=BAD.keys())
    def test_one_sentence(self, tmp_path: Path, change: Change, told: str) -> None:
        with pytest.raises(ModelError, match=told) as caught:
            changed(tmp_path, change)
        assert str(caught.value).count("\n") == 0
        assert str(caught.value).endswith(".")

    @pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"model": {'])
    @pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "config.json"])
    def test_no_json(self, tmp_path: Path, file: str, data: bytes) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        (folder / file).write_bytes(data)
        with pytest.raises(ModelError, match=file):
            HubTokenizer(folder)

    @pytest.mark.parametrize(
        ("file", "data"),
        [
            ("tokenizer.json", b'{"normalizer": {"type": "Replace", "type": "NFC"}'),
            ("tokenizer_config.json", b'{"chat_template": "x"'),
            ("config.json", b'{"eos_token_id": 1'),
        ],
    )
    def test_a_key_twice(self, tmp_path: Path, file: str, data: bytes) -> None:
        """Readers differ in which of the two counts."""
        folder = write_tokenizer(tmp_path, models.byte_level())
        path = folder / file
        rest = path.read_bytes() if path.exists() else b'{"eos_token_id": 2}'
        path.write_bytes(data + b", " + rest.lstrip()[1:])
        with pytest.raises(ModelError, match="twice"):
            HubTokenizer(folder)

    def test_one_that_is_too_large(self, tmp_path: Path) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        with (folder / "tokenizer.json").open("ab") as file:
            file.truncate(1 << 30)
        with pytest.raises(ModelError, match="128 MB"):
            HubTokenizer(folder)

    def test_without_the_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write_tokenizer(tmp_path, models.byte_level())
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(UsageError, match="pip install tokenizers"):
            HubTokenizer(folder)

    def test_numbers_that_json_has_not(self, tmp_path: Path) -> None:
        """As Python writes them."""
        folder = write_tokenizer(tmp_path, models.byte_level())
        (folder / "config.json").write_text('{"limit": [0.0, Infinity], "eos_token_id": 65}')
        assert 65 in HubTokenizer(folder).eos_ids
        for data in (b'{"time": Infinity', b"NaN", b'{"eos_token_id": "\xff Infinity'):
            (folder / "config.json").write_bytes(data)
            with pytest.raises(ModelError, match=r"config\.json"):
                HubTokenizer(folder)


def test_one_vocabulary_in_every_form(tmp_path: Path, bpe_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "hub", vocabulary_of(bpe_path))
    with LlamaModel(bpe_path, threads=1) as model:
        expected = fingerprint(model.tokenizer)
    for address in (bpe_path, folder, folder / "tokenizer.json"):
        assert fingerprint(open_tokenizer(str(address))) == expected
    pair = {fingerprint(open_tokenizer(name)) for name in ("bundled", str(bundled("edge")))}
    assert len(pair) == 1
    assert expected not in pair


def test_it_outlives_whoever_opened_it(bpe_path: Path) -> None:
    many = [open_tokenizer(str(bpe_path)) for _ in range(3)]
    del many[:2]
    assert many[0].encode("the")


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("none.gguf", AddressError, "There is no file"),
        (".", ModelError, "There is no tokenizer.json"),
        ("cut.gguf", ModelError, "cut.gguf"),
    ],
)
def test_what_holds_none(
    tmp_path: Path,
    bpe_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    error: type[Exception],
    words: str,
) -> None:
    (tmp_path / "cut.gguf").write_bytes(bpe_path.read_bytes()[:2000])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        open_tokenizer(address)


def test_of_a_repository_the_tokenizer_alone_is_fetched(tmp_path: Path, bpe_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "hub", vocabulary_of(bpe_path))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    repositories = {
        "own/model": Repository({**files, "model.safetensors": b"weights", "x.bin": b"pickle"}),
        "own/inside": Repository({f"deep/{name}": data for name, data in files.items()}),
        "own/gguf": Repository({"small-Q8_0.gguf": bpe_path.read_bytes()}),
        "own/none": Repository({"model.safetensors": b"weights"}),
    }
    addresses = ["own/model", "hf://own/inside/deep", "own/gguf", "own/gguf:Q8_0", "own/none"]
    with serving(Hub(repositories)) as hub:
        *same, none = in_a_process(
            tmp_path / "home",
            hub.endpoint,
            "fingerprint(open_tokenizer(address))",
            *addresses,
            module="tests.edge.test_hub_tokenizer",
        )
        assert not hub.asked("GET", "safetensors")
        assert not hub.asked("GET", "x.bin")
    assert set(same) == {fingerprint(open_tokenizer(str(bpe_path)))}
    assert "'own/none'" in none
