"""What is llama.cpp's own: files that load or do not, fingerprints, tokenizers, the end."""

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gguf
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise import Pair
from edgewise.addresses import bundled
from edgewise.edge.base import Floats, Needs, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import ModelError, StaleStepError, UsageError
from tests import models
from tests.contracts.test_edge import assert_heads_input

SHORT = [(7 * index) % 250 for index in range(20)]
ATOL = 0.02
THREADS, ROUNDS = 16, 20


def load(path: Path, *, context: int | None = None, slots: int = 1) -> LlamaModel:
    return LlamaModel(path, context=context, threads=1, gpu_layers=0, slots=slots)


@pytest.fixture(scope="module")
def bpe(bpe_path: Path) -> Iterator[LlamaModel]:
    with load(bpe_path, slots=4) as model:
        yield model


@pytest.fixture(scope="module")
def spm(spm_path: Path) -> Iterator[LlamaModel]:
    with load(spm_path) as model:
        yield model


def head(path: Path) -> Floats:
    """The output matrix as it stands in the file."""
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == "output.weight":
            return np.array(tensor.data, np.float32)
    raise AssertionError("no head")


def assert_one_sentence(message: str) -> None:
    assert message.endswith(".")
    assert "\n" not in message


class TestSteps:
    def test_the_head_makes_logits_of_hidden_states(self, bpe: LlamaModel, bpe_path: Path) -> None:
        assert bpe.hidden_size == models.WIDTH
        assert_heads_input(bpe, head(bpe_path), atol=ATOL)

    @pytest.mark.parametrize("failing", [1, 2])
    def test_a_decode_that_fails_is_one_sentence_and_can_be_repeated(
        self, bpe_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
    ) -> None:
        decode, calls = llama_cpp.llama_decode, iter(range(1, 100))

        def fails_once(context: object, batch: llama_cpp.llama_batch) -> int:
            code = decode(context, batch)
            return 1 if next(calls) == failing else code

        with load(bpe_path) as model, load(bpe_path) as other:
            session, wanted = model.session(Needs.LOGITS), other.session(Needs.LOGITS)
            wanted.open(SHORT)
            expected = wanted.step().logits
            monkeypatch.setattr(llama_cpp, "llama_decode", fails_once)
            session.open(SHORT)
            with pytest.raises(ModelError) as caught:
                session.step()
            assert caught.value.setting == "ctx"
            assert "(code 1)" in str(caught.value)
            assert session.position == len(SHORT)
            np.testing.assert_allclose(session.step().logits, expected, atol=ATOL)


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "not a GGUF"),
    "two bytes": (lambda data: data[:2], "not a GGUF"),
    "text": (lambda _: b"not a model at all", "not a GGUF"),
    "the first word": (lambda data: data[:4], "cut off"),
    "a header": (lambda data: data[:24], "cut off"),
    "a third": (lambda data: data[: len(data) // 3], "cut off"),
    "all but the end": (lambda data: data[: int(0.999 * len(data))], "cut off"),
    "an unknown architecture": (lambda data: data.replace(b"llama", b"lhama"), "lhama"),
}


class TestFiles:
    @pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD.keys())
    def test_one_that_does_not_load(
        self, tmp_path: Path, bpe_path: Path, change: Callable[[bytes], bytes], said: str
    ) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(change(bpe_path.read_bytes()))
        with pytest.raises(ModelError, match=said) as caught:
            load(path)
        assert_one_sentence(str(caught.value))

    def test_what_is_not_there(self, bpe_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: False)
        with pytest.raises(UsageError, match="5 layers on a GPU need") as caught:
            LlamaModel(bpe_path, threads=1, gpu_layers=5)
        assert_one_sentence(str(caught.value))
        assert caught.value.setting == "gpu_layers"
        with pytest.raises(UsageError, match="256") as caught:
            load(bpe_path, context=1_000_000)
        assert caught.value.setting == "ctx"

    def test_a_context_beyond_memory(self, bpe_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        freed: list[object] = []
        free = llama_cpp.llama_model_free
        monkeypatch.setattr(llama_cpp, "llama_init_from_model", lambda *_: None)
        monkeypatch.setattr(
            llama_cpp, "llama_model_free", lambda model: (freed.append(model), free(model))
        )
        with pytest.raises(ModelError) as caught:
            load(bpe_path, context=64, slots=3)
        assert_one_sentence(str(caught.value))
        assert "64 ids and 3 slots" in str(caught.value)
        assert (caught.value.hint, caught.value.setting) == ("lower the context", "ctx")
        assert len(freed) == 1, "the weights are given back"


@pytest.mark.parametrize("other", ["another quantisation", "another training"])
def test_another_build_is_another_model(tmp_path: Path, bpe_path: Path, other: str) -> None:
    """With one tokenizer."""
    if other == "another quantisation":
        path = models.write_packed(tmp_path / "q4.gguf")
    else:
        path = models.write_byte_level(tmp_path / "twin.gguf", seed=99)
        assert path.stat().st_size == bpe_path.stat().st_size
    with load(bpe_path) as left, load(path) as right:
        assert left.fingerprint() != right.fingerprint()
        assert fingerprint(left.tokenizer) == fingerprint(right.tokenizer)


def text_of(tokenizer: LlamaTokenizer, text: str) -> str:
    """As its ids say it."""
    return b"".join(map(tokenizer.piece, tokenizer.encode(text))).decode()


class TestTokenizers:
    @given(text=st.text())
    def test_round_trip(self, bpe: LlamaModel, spm: LlamaModel, text: str) -> None:
        assert text_of(bpe.tokenizer, text) == text
        # Sentencepiece writes a text with a space before it.
        assert text_of(spm.tokenizer, text) == " " * bool(text) + text

    def test_merges_pieces_and_bytes(self, bpe: LlamaModel, spm: LlamaModel) -> None:
        assert [bpe.tokenizer.piece(i) for i in bpe.tokenizer.encode("in the")] == [b"in", b" the"]
        assert len(spm.tokenizer.encode("the in")) < 6
        pieces = [spm.tokenizer.piece(token) for token in spm.tokenizer.encode("🙂")]
        assert pieces[-4:] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]
        assert bpe.tokenizer.encode("\ud83d"), "a lone surrogate does not crash"

    def test_one_bos_where_the_model_wants_one(self, bpe: LlamaModel, spm: LlamaModel) -> None:
        assert bpe.tokenizer.bos_id is None
        assert bpe.tokenizer.encode_prompt("a") == bpe.tokenizer.encode("a")
        assert spm.tokenizer.encode_prompt("a").count(1) == 1
        assert spm.tokenizer.encode_prompt("<s>a").count(1) == 1
        assert spm.tokenizer.encode_prompt("<s>a", special=False).count(1) == 1

    @pytest.mark.parametrize("token", [-1, "size", 10**6, 1 << 31, 1 << 32, 1 << 64, -(1 << 40)])
    def test_an_id_of_nothing_is_a_sentence(self, bpe: LlamaModel, token: int | str) -> None:
        """llama.cpp would abort the process."""
        size = bpe.tokenizer.size
        with pytest.raises(UsageError, match=str(size - 1)):
            bpe.tokenizer.piece(size if token == "size" else int(token))
        assert isinstance(bpe.tokenizer.piece(size - 1), bytes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["llama_model_load_from_file", "llama_init_from_model"])
def test_an_interrupt_in_a_callback_is_not_lost(
    bpe_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """While a model loads the log's callback is all the Python that a Ctrl-C can be raised in."""
    real = getattr(llama_cpp, call)
    press = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))

    def pressed(*arguments: object) -> object:
        press()
        return real(*arguments)

    monkeypatch.setattr(llama_cpp, call, pressed)
    # Where this runs in a script's background SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            load(bpe_path)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def text_of_all(tokenizer: Tokenizer, first: int = 0) -> list[bytes]:
    """Every id's piece, asked for from `first` on and then around."""
    size = tokenizer.size
    found = {at % size: tokenizer.piece(at % size) for at in range(first, first + size)}
    return [found[token] for token in range(size)]


@pytest.mark.deep
@pytest.mark.usefixtures("hurried")
def test_threads_do_not_get_each_other_s_text() -> None:
    with LlamaModel(bundled("edge"), threads=1) as model:
        true = text_of_all(model.tokenizer)
    ready = threading.Barrier(THREADS)
    for _ in range(ROUNDS):
        with LlamaModel(bundled("edge"), threads=1, context=64) as model:

            def one(number: int, tokenizer: Tokenizer = model.tokenizer) -> list[bytes]:
                ready.wait()
                return text_of_all(tokenizer, 37 * number)

            with ThreadPoolExecutor(THREADS) as pool:
                assert all(found == true for found in pool.map(one, range(THREADS)))
            # ... and nothing wrong was kept for later.
            assert text_of_all(model.tokenizer) == true


def test_a_piece_of_any_length_is_whole(tmp_path: Path) -> None:
    """llama.cpp says how much room it needs; a line of a table may be hundreds of bytes long."""
    used = models.byte_level()
    long = ["a" * length for length in (63, 64, 65, 500, 3000)]
    vocabulary = replace(
        used,
        tokens=[*used.tokens, *long],
        kinds=[*used.kinds, *[gguf.TokenType.USER_DEFINED] * len(long)],
    )
    path = models.write_transformer(tmp_path / "long.gguf", vocabulary)
    with LlamaModel(path, threads=1) as model:
        first = len(used.tokens)
        assert [model.tokenizer.piece(first + i) for i in range(len(long))] == [
            text.encode() for text in long
        ]


def test_what_is_closed_is_refused() -> None:
    model = LlamaModel(bundled("edge"), threads=1)
    session, tokenizer = model.session(), model.tokenizer
    session.open(tokenizer.encode("copper"))
    step = session.step()
    model.close()
    with pytest.raises(StaleStepError):
        _ = step.logits
    pair = Pair("bundled", threads=1)
    pair.close()
    uses: tuple[Callable[[], object], ...] = (
        lambda: tokenizer.encode("copper"),
        lambda: tokenizer.encode_prompt("copper"),
        lambda: tokenizer.piece(40),
        lambda: tokenizer.special_text("eos"),
        lambda: tokenizer.special,
        lambda: tokenizer.bos_id,
        lambda: pair.ask("x"),
        lambda: pair.prompt("x"),
        lambda: pair.ask([1, 2]),
    )
    for use in uses:
        with pytest.raises(UsageError, match="closed"):
            use()


@pytest.mark.parametrize("again", range(4))
def test_closing_while_others_tokenise_and_decode_ends_in_sentences(again: int) -> None:
    model = LlamaModel(bundled("edge"), threads=1, slots=3)
    started = threading.Barrier(4)

    def work() -> None:
        session = model.session(Needs.LOGITS)
        started.wait()
        while True:
            session.open(model.tokenizer.encode("Tell me about copper and zinc. " * 3))
            model.tokenizer.piece(session.step().proposed)
            session.rewind(0)

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work) for _ in range(3)]
        started.wait()
        model.close()
        for one in working:
            with pytest.raises(UsageError, match="closed"):
                one.result(60)
