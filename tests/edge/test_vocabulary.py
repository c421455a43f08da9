"""A tokenizer by itself: a hub model's says what llama.cpp says of a GGUF of the same model.

And what a vocabulary is known by, and which texts are too long for a context.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.addresses import bundled
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import open_tokenizer
from edgewise.edge.tokenizer_json import HubTokenizer
from edgewise.edge.vocabulary import CHUNK, fingerprint, require_fitting
from edgewise.errors import AddressError, ContextOverflow, ModelError, UsageError
from edgewise.pair import Pair
from edgewise.prompts import Message, prompt_ids
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise
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
    *(text for one in pocketqa().questions[::8] for text in (one.prompt, one.reference)),
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


@pytest.mark.deep
def test_it_is_the_same_as_the_gguf(both: tuple[HubTokenizer, Tokenizer]) -> None:
    hub, llama = both
    assert fingerprint(hub) == fingerprint(llama)
    assert hub.size == llama.size
    assert [*map(hub.piece, range(hub.size))] == [*map(llama.piece, range(hub.size))]
    for special in (False, True):
        for text in TEXTS:
            assert hub.encode(text, special=special) == llama.encode(text, special=special)
            prompt = llama.encode_prompt(text, special=special)
            assert hub.encode_prompt(text, special=special) == prompt
    assert hub.special == llama.special
    assert hub.eos_ids == llama.eos_ids
    assert hub.chat_template == llama.chat_template
    assert hub.special_text("eos") == llama.special_text("eos")
    # A user writes control tokens: the template's own alone become ids.
    assert prompt_ids(hub, TALK) == prompt_ids(llama, TALK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny byte-level tokenizer."""
    return write_tokenizer(tmp_path / "own", models.byte_level())


Change = Callable[[dict[str, Any]], None]


def changed(folder: Path, change: Change, file: str = "tokenizer.json") -> HubTokenizer:
    """With something else in one of its files."""
    described = json.loads((folder / file).read_text())
    change(described)
    (folder / file).write_text(json.dumps(described))
    return HubTokenizer(folder)


def added(*texts: str, special: bool = False) -> Change:
    """Tokens beyond the vocabulary's."""

    def add(described: dict[str, Any]) -> None:
        last = described["added_tokens"][-1]
        for number, text in enumerate(texts, 1):
            more = last | {"id": last["id"] + number, "content": text, "special": special}
            described["added_tokens"].append(more)

    return add


class TestTokens:
    def test_beyond_the_vocabulary(self, folder: Path) -> None:
        """A user-defined one is read in any text; one that looks special is: Qwen calls
        `<|fim_prefix|>` ordinary, and llama.cpp's converter a control token."""
        tokenizer = changed(folder, added("<think>", "<|fim_prefix|>"))
        think, fim = tokenizer.size - 2, tokenizer.size - 1
        assert tokenizer.encode("a<think>b").count(think) == 1
        assert tokenizer.piece(think) == b"<think>"
        assert think not in tokenizer.special
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

    def test_padding_writes_nothing_and_no_id_has_no_logit(self, folder: Path) -> None:
        plain = HubTokenizer(folder)
        for padding in (1, 271):
            padded = HubTokenizer(folder, size=plain.size + padding)
            assert fingerprint(padded) == fingerprint(plain)
            assert padded.piece(padded.size - 1) == b""
            with pytest.raises(UsageError, match=str(padded.size - 1)):
                padded.piece(padded.size)
        with pytest.raises(ModelError, match=r"267.*200"):
            HubTokenizer(folder, size=200)

    def test_padding_and_truncation_of_the_file_are_left_out(self, folder: Path) -> None:
        cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
        pad = {"direction": "Right", "strategy": {"Fixed": 1 << 40}, "pad_to_multiple_of": None}
        pad |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
        tokenizer = changed(folder, lambda found: found.update(truncation=cut, padding=pad))
        assert len(tokenizer.encode("a b c")) == 5

    def test_threads_do_not_change_what_others_read(self, folder: Path) -> None:
        tokenizer = HubTokenizer(folder)
        wanted = {s: tokenizer.encode("<|im_end|>", special=s) for s in (False, True)}

        def read(special: bool) -> bool:
            seen = (tokenizer.encode("<|im_end|>", special=special) for _ in range(200))
            return all(ids == wanted[special] for ids in seen)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, [True, False, True, False]))


class TestBeside:
    def configured(self, folder: Path, **what: object) -> HubTokenizer:
        return changed(folder, lambda found: found.update(what), "tokenizer_config.json")

    def test_templates_by_name_or_in_a_file_of_their_own(self, folder: Path) -> None:
        named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
        assert self.configured(folder, chat_template=named).chat_template == "D"
        tools = [*named, {"name": "tool_use", "template": "U"}]
        assert self.configured(folder, chat_template=tools).tool_template == "U"
        assert self.configured(folder, chat_template=named[:1]).chat_template == "T"
        assert self.configured(folder, chat_template=[]).chat_template is None
        for encoding in ("utf-8", "utf-8-sig"):
            (folder / "chat_template.jinja").write_text("own", encoding=encoding)
            assert HubTokenizer(folder).chat_template == "own"
            data = (folder / "tokenizer.json").read_bytes()
            (folder / "tokenizer.json").write_bytes(b"\xef\xbb\xbf" + data)

    def test_whether_a_bos_begins_a_text(self, tmp_path: Path, folder: Path) -> None:
        spm = write_tokenizer(tmp_path / "spm", models.sentencepiece())
        assert HubTokenizer(spm).encode_prompt("") == [1]
        assert self.configured(spm, add_bos_token=False).encode_prompt("") == []
        told = {"add_bos_token": True, "bos_token": {"content": models.END}}
        tokenizer = self.configured(folder, **told)
        assert tokenizer.special[tokenizer.encode_prompt("a")[0]] == models.END

    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    @pytest.mark.parametrize("ends", [3, [3, 5], [3, 1 << 40]])
    def test_ends_that_a_model_names(self, folder: Path, file: str, ends: int | list[int]) -> None:
        plain = HubTokenizer(folder).eos_ids
        (folder / file).write_text(json.dumps({"eos_token_id": ends, "vocab_size": 300}))
        known = {token for token in ([ends] if isinstance(ends, int) else ends) if token < 267}
        assert HubTokenizer(folder).eos_ids == plain | known

    def test_nothing_beside_it(self, folder: Path) -> None:
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


def uncountable(described: dict[str, Any]) -> None:
    described["normalizer"] = {"type": "Sequence", "normalizers": 5}


BAD: dict[str, tuple[Change, str]] = {
    "another kind": (wordpiece, "WordPiece"),
    "a text that grows": (growing, "16 times"),
    "steps of nothing": (uncountable, "is not a tokenizer"),
    "an id of no model": (lambda found: found["model"]["vocab"].update(q=4 * 10**9), "4000000001"),
    "no model": (lambda found: found.pop("model"), "is not a tokenizer"),
    "a model of nothing": (lambda found: found.update(model=[1]), "is not a tokenizer"),
    "merges of nothing": (lambda found: found["model"].update(merges=[["q", "zz"]]), "cannot load"),
    "an unknown kind": (lambda found: found["model"].update(type="Sevenfold"), "cannot load"),
    "ids that are none": (lambda found: found["model"].update(vocab={"a": -1}), "cannot load"),
}


FILES = ("tokenizer.json", "tokenizer_config.json")
NO_JSON = [b"", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"model": {']
OF_A_CONFIG = [*NO_JSON, b'{"time": Infinity', b"NaN", b'{"eos_token_id": "\xff Infinity']


class TestBadFiles:
    @pytest.mark.parametrize(("change", "told"), BAD.values(), ids=BAD.keys())
    def test_one_sentence(self, folder: Path, change: Change, told: str) -> None:
        with pytest.raises(ModelError, match=told) as caught:
            changed(folder, change)
        assert str(caught.value).count("\n") == 0
        assert str(caught.value).endswith(".")

    @pytest.mark.parametrize(
        ("file", "data"),
        [
            *((file, data) for file in FILES for data in NO_JSON),
            *(("config.json", data) for data in OF_A_CONFIG),
        ],
    )
    def test_no_json(self, folder: Path, file: str, data: bytes) -> None:
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
    def test_a_key_twice(self, folder: Path, file: str, data: bytes) -> None:
        """Readers differ in which of the two counts."""
        path = folder / file
        rest = path.read_bytes() if path.exists() else b'{"eos_token_id": 2}'
        path.write_bytes(data + b", " + rest.lstrip()[1:])
        with pytest.raises(ModelError, match="twice"):
            HubTokenizer(folder)

    def test_one_that_is_too_large(self, folder: Path) -> None:
        with (folder / "tokenizer.json").open("ab") as file:
            file.truncate(1 << 30)
        with pytest.raises(ModelError, match="128 MB"):
            HubTokenizer(folder)

    def test_without_the_library(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(UsageError, match="pip install tokenizers"):
            HubTokenizer(folder)

    def test_numbers_that_json_has_not(self, folder: Path) -> None:
        """As Python writes them."""
        (folder / "config.json").write_text('{"limit": [0.0, Infinity], "eos_token_id": 65}')
        assert 65 in HubTokenizer(folder).eos_ids


def by_llama_cpp(path: Path) -> str:
    with LlamaModel(path, threads=1) as model:
        return fingerprint(model.tokenizer)


def test_one_vocabulary_in_every_form(tmp_path: Path, bpe_path: Path, other_path: Path) -> None:
    expected = by_llama_cpp(bpe_path)
    folder = write_tokenizer(tmp_path / "hub", vocabulary_of(bpe_path))
    for address in (bpe_path, folder, folder / "tokenizer.json"):
        assert fingerprint(open_tokenizer(str(address))) == expected
    pair = {fingerprint(open_tokenizer(name)) for name in ("bundled", str(bundled("edge")))}
    assert len(pair) == 1
    assert expected not in {*pair, by_llama_cpp(other_path)}
    used = models.byte_level()
    unused = [gguf.TokenType.UNUSED] * 3
    padded = replace(used, tokens=[*used.tokens, *"ΑΒΓ"], kinds=[*used.kinds, *unused])
    turned = models.byte_level(("l o", "l l"))
    for name, vocabulary, same in (("padded", padded, True), ("turned", turned, False)):
        path = models.write_transformer(tmp_path / f"{name}.gguf", vocabulary)
        assert (by_llama_cpp(path) == expected) is same
    many = [open_tokenizer(str(bpe_path)) for _ in range(3)]
    del many[:2]
    assert many[0].encode("the"), "it outlives whoever opened it"


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


@pytest.mark.deep
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
            module="tests.edge.test_vocabulary",
        )
        assert not hub.asked("GET", "safetensors")
        assert not hub.asked("GET", "x.bin")
    assert set(same) == {fingerprint(open_tokenizer(str(bpe_path)))}
    assert "'own/none'" in none


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


class Counting(ByteTokenizer):
    """Remembers how much it was given; says that an id may stand for so many bytes."""

    def __init__(self, widest: int = 1) -> None:
        super().__init__()
        self.characters: list[int] = []
        self.widest = widest

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.characters.append(len(text))
        return super().encode(text, special=special)

    def piece(self, token: int) -> bytes:
        return super().piece(token) * (self.widest if token == 0 else 1)


def test_no_more_is_tokenised_than_it_takes_to_refuse() -> None:
    tokenizer = Counting()
    with pytest.raises(ContextOverflow, match=r"699051.*4096"):
        require_fitting(tokenizer, [HUGE], 4096)
    require_fitting(tokenizer, ["a" * (CHUNK // 2)] * 2, 1)
    assert tokenizer.characters == [], "length alone refuses, and short texts are not looked at"
    # Where it refuses little, tokens are counted no further than the context needs.
    tokenizer = Counting(widest=100)
    with pytest.raises(ContextOverflow, match="131072"):
        require_fitting(tokenizer, [HUGE], 1 << 17)
    assert tokenizer.characters == [CHUNK] * 4


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(bundled("edge")) as loaded:
        yield loaded


@given(st.lists(st.sampled_from(WORDS)), st.data())
def test_what_fits_is_not_refused(model: LlamaModel, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts) * data.draw(st.integers(1, 1 + 200_000 // (1 + len("".join(parts)))))
    tokens = len(model.tokenizer.encode(text, special=data.draw(st.booleans())))
    require_fitting(model.tokenizer, [text], tokens + 1)


def test_a_pair_refuses_at_once() -> None:
    tokenizer = Counting()
    edge = ScriptedEdge(noise(), tokenizer=tokenizer)
    forms = (HUGE[1:] + "a", [Message("user", HUGE)], [{"role": "user", "content": HUGE}])
    for asked in forms:
        with Pair(edge) as pair, pytest.raises(ContextOverflow, match="shorten it"):
            pair.ask(asked)  # type: ignore[arg-type]
        assert tokenizer.characters == []
