"""All ids of a vocabulary against an engine's: what is told apart, what is said."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import connect
from edgewise.cloud.engine import LlamaServer
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines import detokenization as all_ids
from edgewise.engines.base import Client, Engine
from edgewise.engines.detokenization import compare_all
from edgewise.errors import CloudProtocolError, CloudRejected, VocabularyMismatch
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests import models
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine
from tests.gateway.doubles import PlainEngine
from tests.hub_files import vocabulary_of, write_tokenizer
from tests.llama_server_process import llama_server

BYTES = ByteTokenizer()


def told(cloud: CloudModel, tokenizer: Tokenizer = BYTES) -> str:
    with closing(cloud):
        return cloud.check_vocabulary(tokenizer)


@pytest.fixture(scope="module")
def family(model_folder: Path) -> Iterator[list[LlamaModel]]:
    """Two generations of one family: equal but for four added tokens."""
    with ExitStack() as stack:
        paths = [
            models.write_transformer(model_folder / f"qwen{name}.gguf", models.qwen(name))
            for name in ("2.5", "3")
        ]
        yield [stack.enter_context(LlamaModel(one, threads=1, context=32)) for one in paths]


@pytest.mark.deep
def test_all_ids_of_one_file(spm_path: Path) -> None:
    """With pieces and bytes to fall back to; the contract of all clouds has byte-level ones."""
    with LlamaModel(spm_path, threads=1, context=32) as model, llama_server(spm_path) as url:
        assert f"all {model.tokenizer.size:,} ids" in told(LlamaServer(url), model.tokenizer)


@pytest.mark.deep
def test_generations_of_one_family_differ(family: list[LlamaModel], model_folder: Path) -> None:
    """Fixed strings have the same ids, and the id of `<think>` is nothing to the older one."""
    older, later = (model.tokenizer for model in family)
    assert [*map(older.encode, PROBES)] == [*map(later.encode, PROBES)]
    with llama_server(model_folder / "qwen3.gguf") as url:
        with pytest.raises(VocabularyMismatch, match="<tool_response>"):
            told(LlamaServer(url), older)
        for edge, own in ((older, later), (later, None)):
            with closing(connect(url, edge, own=own)) as reached:
                assert (reached.boundaries is None) == (own is None)
                assert "all 277 ids" in reached.vocabulary_check


def test_nor_is_the_older_one_a_cloud_for_the_later(family: list[LlamaModel]) -> None:
    older, later = (model.tokenizer for model in family)
    with pytest.raises(VocabularyMismatch, match=r"</?t"):
        compared(Detokenizing(older, joined), later)


def compared(engine: Engine, tokenizer: Tokenizer) -> str:
    return asyncio.run(compare_all(engine, tokenizer))


class Detokenizing(PlainEngine):
    """Writes ids as one kind of engine does; `swapped` ids stand for each other."""

    def __init__(self, tokenizer: Tokenizer, join: Callable[[list[bytes]], str]) -> None:
        super().__init__()
        self.tokenizer = tokenizer  # type: ignore[assignment]
        self.join, self.swapped = join, (0, 0)
        self.requests = 0

    async def detokenize(self, ids: Sequence[int], client: Client | None = None) -> str | None:
        self.requests += 1
        one, other = self.swapped
        pieces: list[bytes] = []
        for asked in ids:
            token = {one: other, other: one}.get(asked, asked)
            text = self.tokenizer.special.get(token)
            inside = token < self.tokenizer.size
            pieces.append(text.encode() if text else self.tokenizer.piece(token) if inside else b"")
        return self.join(pieces)


def joined(pieces: list[bytes]) -> str:
    """As llama-server and byte-level decoders."""
    return b"".join(pieces).decode("utf-8", "replace")


def tidied(pieces: list[bytes]) -> str:
    """As transformers where a tokenizer's config asks for it."""
    text = joined(pieces)
    for ending in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(ending, ending.strip())
    return text


def stripped(pieces: list[bytes]) -> str:
    """As decoders that take a text's first blank for the vocabulary's."""
    return joined(pieces).removeprefix(" ")


@pytest.fixture(scope="module")
def vocabularies(bpe_path: Path, spm_path: Path) -> Iterator[dict[str, Tokenizer]]:
    with (
        LlamaModel(bpe_path, threads=1, context=32) as bpe,
        LlamaModel(spm_path, threads=1, context=32) as spm,
        LlamaModel(bundled("edge"), threads=1, context=32) as own,
    ):
        yield {"bpe": bpe.tokenizer, "spm": spm.tokenizer, "bundled": own.tokenizer}


class Large(ByteTokenizer):
    size = 50_000

    def piece(self, token: int) -> bytes:
        return super().piece(token) if token < 258 else b"w%d " % token


class Decoding(PlainEngine):
    """Writes ids as the library does with which vLLM and SGLang detokenise."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.library = pytest.importorskip("tokenizers").Tokenizer.from_file(
            str(folder / "tokenizer.json")
        )

    async def detokenize(self, ids: Sequence[int], client: Client | None = None) -> str | None:
        return self.library.decode(list(ids), skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["bpe", "spm", "bundled"])
def test_the_library_tokenizers_writes_the_same(
    kind: str, bpe_path: Path, spm_path: Path, vocabularies: dict[str, Tokenizer], tmp_path: Path
) -> None:
    """Byte-level, and pieces with bytes to fall back to, of which it drops the first blank."""
    path = {"bpe": bpe_path, "spm": spm_path, "bundled": bundled("edge")}[kind]
    write_tokenizer(tmp_path, vocabulary_of(path), pre="qwen2")
    one = vocabularies[kind]
    assert compared(Decoding(tmp_path), one) == f"; all {one.size:,} ids stand for the same"


@given(
    kind=st.sampled_from(["bpe", "spm", "bundled"]),
    join=st.sampled_from([joined, tidied, stripped]),
    draw=st.data(),
)
def test_any_two_ids_that_changed_places_are_found(
    vocabularies: dict[str, Tokenizer], kind: str, join: Any, draw: st.DataObject
) -> None:
    """Control tokens too, and an id that stands for nothing."""
    one = vocabularies[kind]
    engine = Detokenizing(one, join)
    ids = st.integers(0, one.size - 1)
    first, second = draw.draw(st.tuples(ids, ids))
    texts = [one.special.get(i, "").encode() or one.piece(i) for i in (first, second)]
    shown = [tidied([b"x", text, b"x"]) for text in texts]
    engine.swapped = first, second
    if shown[0] == shown[1]:
        return
    with pytest.raises(VocabularyMismatch):
        compared(engine, one)
    assert engine.requests < 4


def test_another_end_of_an_answer() -> None:
    class Ends(Detokenizing):
        async def end_text(self) -> str | None:
            return "<tool_call>"

    with pytest.raises(VocabularyMismatch, match="ends an answer with '<tool_call>'"):
        compared(Ends(BYTES, joined), BYTES)


def test_of_a_large_vocabulary_every_id_is_compared_until_the_engine_declines() -> None:
    class Busy(Detokenizing):
        async def detokenize(self, ids: Sequence[int], client: Client | None = None) -> Any:
            if self.requests >= 4:
                raise CloudRejected("enough.")
            return await super().detokenize(ids, client)

    known = Large()
    engine = Detokenizing(known, joined)
    assert compared(engine, known) == "; all 50,000 ids stand for the same"
    for engine.swapped in ((300, 301), (19_999, 19_000), (5_000, 40_000)):
        with pytest.raises(VocabularyMismatch):
            compared(engine, known)
    assert "; 24,576 of 50,000 ids stand" in compared(Busy(known, joined), known)


def test_an_id_that_stands_for_nothing_to_the_edge_is_no_completion(engine: ScriptedEngine) -> None:
    """Where not all ids could be compared, and the cloud has more of them."""

    class Padded(ByteTokenizer):
        size = 260

    engine.detokenizes = False
    with closing(LlamaServer(engine.url)) as cloud:
        cloud.check_vocabulary(Padded())
        session = cloud.open(Prompt((1,)))
        assert session.ask(ConsultRequest([1], 1, 20)).result().ids
        engine.script = lambda ids: 259
        with pytest.raises(CloudProtocolError, match="id 259"):
            session.ask(ConsultRequest([1], 1, 20)).result()


@pytest.mark.parametrize(
    ("misdeed", "why"),
    [
        (Edited(lambda _: b'{"content": 5}'), "of its form"),
        (Edited(lambda _: b'{"content": "%s"}' % (b"a" * (5 << 20))), "more than"),
        (None, "(it does not detokenise)"),
        (Edited(status=500), "HTTP 500"),
        (Edited(status=422), "HTTP 422"),
        ("hang", "it took longer than 0.2 s"),
    ],
)
def test_what_is_no_text_leaves_the_fixed_strings(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, misdeed: Misdeed | None, why: str
) -> None:
    engine.detokenizes = misdeed is not None
    if misdeed == "hang":
        monkeypatch.setattr(all_ids, "COMPARE_SECONDS", 0.2)
    engine.aside = lambda path: misdeed if path == "/detokenize" else None
    how = told(LlamaServer(engine.url))
    assert how.startswith("5 strings have the same ids at the engine; its other ids are not ")
    assert why in how
