"""Speculating over a slow link changes no answer, whatever runs the edge model."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.edge.base import EdgeModel, EdgeSession, Floats, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.onnx import OnnxModel
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.constant import Random
from edgewise.testing.scripted_cloud import ScriptedCloud
from tests.hybrid_models import HybridPaths
from tests.onnx_models import require_onnx
from tests.transformers_models import CONFIGS, write_hub_model

pytestmark = pytest.mark.deep

CONTEXT, TOKENS = 128, 24
LONG = "Of what one sees at night. " * 32
"""More ids than layers with windows hold where they hold the last ones alone."""

TIE = 2e-2
"""Of the largest logit: batches of different sizes differ by half of it."""

"""As long a text is read quickly."""

RECURRENT = ("qwen35", "falcon-h1", "lfm2", "rwkv7")
HUB = tuple(f"transformers-{kind}" for kind in CONFIGS)


def a_gguf(path: Path, **more: object) -> LlamaModel:
    options = {"context": CONTEXT, "threads": 1, "gpu_layers": 0, "slots": 2} | more
    return LlamaModel(path, **options)  # type: ignore[arg-type]


def a_hub_model(folder: Path, kind: str) -> EdgeModel:
    for name in ("torch", "transformers"):
        pytest.importorskip(name)
    from edgewise.edge.transformers import TransformersModel

    write_hub_model(folder / kind, CONFIGS[kind]())
    return TransformersModel(folder / kind, context=CONTEXT, threads=1, gpu_layers=0, slots=2)


@pytest.fixture(scope="module", params=["onnx", "gemma3", *RECURRENT, *HUB])
def edge(
    request: pytest.FixtureRequest,
    hybrid_paths: HybridPaths,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EdgeModel]:
    kind: str = request.param
    if kind == "onnx":
        require_onnx()
        folder: Path = request.getfixturevalue("onnx_path")
        made: EdgeModel = OnnxModel(folder, context=CONTEXT, threads=1, gpu_layers=0, slots=2)
    elif kind in HUB:
        made = a_hub_model(tmp_path_factory.mktemp("hub"), kind.partition("-")[2])
    else:
        made = a_gguf(hybrid_paths[kind])
    with closing(made):
        yield made


def fresh(edge: EdgeModel, ids: Sequence[int]) -> Floats:
    """Logits after `ids`, read from the start."""
    with closing(edge.session(Needs.LOGITS)) as session:
        session.open(ids)
        return session.step().logits.copy()


class Agreeing:
    """A cloud's script: what the edge would write at two of three places, and letters elsewhere."""

    def __init__(self, edge: EdgeModel, seed: int) -> None:
        self._size, self._seed = edge.tokenizer.size, seed
        self._reader: EdgeSession | None = edge.session(Needs.LOGITS)
        self._known: dict[tuple[int, ...], Floats] = {}
        self._lock = threading.Lock()

    def __call__(self, ids: Sequence[int]) -> Floats:
        with self._lock:
            if self._reader is None or (self._seed + len(ids) + ids[-1]) % 3 == 0:
                logits = np.zeros(self._size, np.float32)
                logits[97 + (7 * ids[-1] + len(ids)) % 26] = 1
                return logits
            if tuple(ids) not in self._known:
                self._reader.open(ids)
                self._known[tuple(ids)] = self._reader.step().logits.copy()
            return self._known[tuple(ids)]

    def close(self) -> None:
        """A consult that nobody waits for may still come."""
        with self._lock:
            assert self._reader is not None
            self._reader.close()
            self._reader = None


def assert_same(ahead: Answer, waiting: Answer, logits: Callable[[Sequence[int]], Floats]) -> None:
    """Token by token, up to where two ids are equally likely but for rounding."""
    written: list[int] = []
    for one, other in zip(ahead.tokens, waiting.tokens, strict=False):
        if (one.id, one.source, one.reason) != (other.id, other.source, other.reason):
            row = logits(written)
            last, best = np.sort(row)[-2:]
            assert one.id != other.id
            assert best - last <= TIE * np.abs(row).max()
            return
        written.append(one.id)
    assert len(ahead.tokens) == len(waiting.tokens)
    assert ahead.usage.correction_tokens == waiting.usage.correction_tokens


@given(
    prompt=st.text(st.characters(codec="utf-8", max_codepoint=0x2FF), min_size=1, max_size=16),
    seed=st.integers(0, 99),
    delay=st.sampled_from([0.0, 0.001, 0.004, 0.015]),
    dial=st.sampled_from([(0.5, None), (0.8, None), (0.5, 0.1), (0.5, 0.3)]),
    speculate=st.sampled_from([1, 4, 16]),
    span=st.integers(1, 3),
)
def test_the_answer_is_that_of_the_waiting_loop(
    edge: EdgeModel,
    prompt: str,
    seed: int,
    delay: float,
    dial: tuple[float, float | None],
    speculate: int,
    span: int,
) -> None:
    """Fixed delays, against a threshold alone and with a share."""
    begin = LONG if edge.context > CONTEXT else "Q: "
    ids = edge.tokenizer.encode_prompt(begin + prompt)
    threshold, share = dial

    def answer(ahead: int, late: float) -> Answer:
        policy = Policy(
            threshold=threshold, cloud_share=share, span=span, deadline=60, speculate=ahead
        )
        cloud = ScriptedCloud(script, delay=late)
        decoder = Decoder(edge, router=Random(seed), policy=policy, cloud=cloud)
        return decoder.generate(ids, max_tokens=TOKENS)

    with closing(Agreeing(edge, seed)) as script:
        waiting, ahead = answer(0, 0.0), answer(speculate, delay)
    assert_same(ahead, waiting, lambda more: fresh(edge, [*ids, *more]))
