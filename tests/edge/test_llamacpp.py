"""What is llama.cpp's own: files that load or do not, fingerprints, tokenizers."""

import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path

import gguf
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.edge.base import Floats, Needs
from edgewise.edge.kv import BATCH, KvSession
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import ModelError, UsageError
from tests import models

LONG = [(7 * index) % 250 for index in range(2 * BATCH + 37)]
SHORT = LONG[:20]
ATOL = 0.02


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


@pytest.fixture(scope="module")
def other(other_path: Path) -> Iterator[LlamaModel]:
    with load(other_path) as model:
        yield model


@pytest.fixture
def session(bpe: LlamaModel) -> Iterator[KvSession]:
    made = bpe.session(Needs.LOGITS | Needs.HIDDEN)
    yield made
    made.close()


def head(path: Path) -> Floats:
    """The output matrix as it stands in the file."""
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == "output.weight":
            return np.array(tensor.data, np.float32)
    raise AssertionError("no head")


def message_of(path: Path, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        LlamaModel(path, threads=1, **options)  # type: ignore[arg-type]
    return str(caught.value)


def assert_one_sentence(message: str) -> None:
    assert message.endswith(".")
    assert "\n" not in message


def test_no_context_is_longer_than_the_model_was_made_for(bpe_path: Path) -> None:
    with pytest.raises(UsageError, match="256") as caught:
        load(bpe_path, context=1_000_000)
    assert caught.value.setting == "ctx"


class TestSteps:
    def test_the_head_makes_the_logits_of_the_hidden_state(
        self, session: KvSession, bpe_path: Path
    ) -> None:
        session.open(SHORT)
        steps = [session.step(), *session.steps(LONG[20:25])]
        for step in steps:
            assert step.hidden.shape == (models.WIDTH,)
            np.testing.assert_allclose(head(bpe_path) @ step.hidden, step.logits, atol=ATOL)

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

    def test_logits_survive_another_session_s_decode(self, bpe: LlamaModel) -> None:
        """Sessions of one model may run in several threads."""
        first, second = bpe.session(), bpe.session()
        first.open(SHORT)
        step = first.step()
        before = step.logits.copy()
        second.open(SHORT[::-1])
        second.step()
        assert np.array_equal(step.logits, before)
        assert step.logprob(step.proposed) <= 0
        first.close()
        second.close()


class TestFiles:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        message = message_of(tmp_path / "none.gguf")
        assert "no file" in message
        assert_one_sentence(message)

    @pytest.mark.parametrize("content", [b"", b"GG", b"not a model at all", b"\x00" * 4096])
    def test_no_gguf(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        message = message_of(path)
        assert "not a GGUF" in message
        assert_one_sentence(message)

    @pytest.mark.parametrize("kept", [4, 24, 1000, 0.3, 0.999])
    def test_a_truncated_gguf(self, tmp_path: Path, bpe_path: Path, kept: float) -> None:
        data = bpe_path.read_bytes()
        path = tmp_path / "model.gguf"
        path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
        with pytest.raises(ModelError) as caught:
            load(path)
        assert "truncated" in str(caught.value)
        assert_one_sentence(str(caught.value))

    def test_an_unknown_architecture(self, tmp_path: Path, bpe_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(bpe_path.read_bytes().replace(b"llama", b"lhama"))
        with pytest.raises(ModelError, match="unknown") as caught:
            load(path)
        assert "lhama" in str(caught.value)
        assert_one_sentence(str(caught.value))

    def test_layers_for_a_gpu_that_is_not_there(
        self, bpe_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: False)
        message = message_of(bpe_path, gpu_layers=5)
        assert message.startswith("5 layers on a GPU need")
        assert_one_sentence(message)
        with pytest.raises(UsageError) as caught:
            LlamaModel(bpe_path, threads=1, gpu_layers=5)
        assert caught.value.setting == "gpu_layers"

    def test_a_context_that_memory_does_not_hold(
        self, bpe_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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


class TestFingerprints:
    def test_another_quantisation_is_another_model(self, tmp_path: Path, bpe_path: Path) -> None:
        assert_kin(bpe_path, models.write_packed(tmp_path / "q4.gguf"))

    def test_another_training_is_another_model(self, tmp_path: Path, bpe_path: Path) -> None:
        twin = models.write_byte_level(tmp_path / "twin.gguf", seed=99)
        assert twin.stat().st_size == bpe_path.stat().st_size
        assert_kin(bpe_path, twin)


def assert_kin(left_path: Path, right_path: Path) -> None:
    """Two models with one tokenizer."""
    with load(left_path) as left, load(right_path) as right:
        assert left.fingerprint() != right.fingerprint()
        assert fingerprint(left.tokenizer) == fingerprint(right.tokenizer)


def text_of(tokenizer: LlamaTokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.piece, ids)).decode()


def without_space(text: str) -> str:
    """Sentencepiece writes a text with a space before it."""
    assert text[:1] in ("", " ")
    return text[1:]


class TestTokenizers:
    @given(text=st.text())
    def test_byte_level_round_trip(self, bpe: LlamaModel, text: str) -> None:
        assert text_of(bpe.tokenizer, bpe.tokenizer.encode(text)) == text

    @given(text=st.text())
    def test_sentencepiece_round_trip(self, spm: LlamaModel, text: str) -> None:
        assert without_space(text_of(spm.tokenizer, spm.tokenizer.encode(text))) == text

    def test_merges_and_pieces_are_used(self, bpe: LlamaModel, spm: LlamaModel) -> None:
        assert [bpe.tokenizer.piece(i) for i in bpe.tokenizer.encode("in the")] == [b"in", b" the"]
        assert len(spm.tokenizer.encode("the in")) < 6

    def test_letters_without_a_piece_fall_back_to_bytes(self, spm: LlamaModel) -> None:
        pieces = [spm.tokenizer.piece(token) for token in spm.tokenizer.encode("🙂")]
        assert pieces[-4:] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]

    def test_one_bos_where_the_model_wants_one(self, bpe: LlamaModel, spm: LlamaModel) -> None:
        assert bpe.tokenizer.bos_id is None
        assert bpe.tokenizer.encode_prompt("a") == bpe.tokenizer.encode("a")
        assert spm.tokenizer.encode_prompt("a").count(1) == 1
        assert spm.tokenizer.encode_prompt("<s>a").count(1) == 1
        assert spm.tokenizer.encode_prompt("<s>a", special=False).count(1) == 1

    def test_lone_surrogates_do_not_crash(self, bpe: LlamaModel) -> None:
        assert bpe.tokenizer.encode("\ud83d")


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
