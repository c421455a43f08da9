"""Router checkpoints: the same score as a plain reference, and one sentence for a bad file.

A router of another build of its model is used with a warning, one of another model never.
"""

import logging
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgewise.edge.base import EdgeModel, Floats, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import RouterMismatch, UsageError
from edgewise.opening import open_router
from edgewise.options.onnx.model import OnnxModel
from edgewise.routers import card as cards
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard
from edgewise.routers.mlp import MAX_WEIGHTS, Mlp
from edgewise.routers.signals import EVIDENCE, logtoku, width_of
from edgewise.settings import Settings
from edgewise.testing.scripted_edge import HIDDEN, ByteTokenizer, ScriptedEdge, noise
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests import models
from tests.onnx_models import require_onnx

Tensors = dict[str, NDArray[Any]]

CARD = RouterCard(
    kind="mlp",
    edge_fingerprint="scripted",
    tokenizer_fingerprint=fingerprint(ByteTokenizer()),
    hidden_size=HIDDEN,
    inputs=("hidden", "top_logprobs", "scalars"),
    top_k=5,
)
SCALARS = width_of(["scalars"], HIDDEN, 0)
WIDTH = HIDDEN + 5 + SCALARS


def weights(*sizes: int, seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    tensors: Tensors = {
        "mean": rng.standard_normal(sizes[0], np.float32),
        "std": rng.uniform(0.5, 2.0, sizes[0]).astype(np.float32),
    }
    for index, (width, out) in enumerate(pairwise(sizes)):
        tensors[f"layers.{index}.weight"] = rng.standard_normal((out, width), np.float32) / 2
        tensors[f"layers.{index}.bias"] = rng.standard_normal(out, np.float32)
    return tensors


def write(folder: Path, tensors: Tensors, card: RouterCard = CARD) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_bytes(msgspec.json.encode(card))
    return folder


def step_for(router: Mlp, seed: int = 0) -> Step:
    session = ScriptedEdge(noise(seed)).session(router.needs, top=router.top)
    session.open([1, 2, 3])
    return session.step()


def plain_score(tensors: Tensors, x: NDArray[np.float64]) -> float:
    """The definition, in float64 and without folding."""
    x = (x - tensors["mean"]) / tensors["std"]
    count = sum(name.endswith("weight") for name in tensors)
    for index in range(count):
        x = tensors[f"layers.{index}.weight"].astype(np.float64) @ x
        x = x + tensors[f"layers.{index}.bias"]
        if index < count - 1:
            x = np.maximum(x, 0.0)
    return 1.0 / (1.0 + math.exp(-float(x[0])))


def features_of(step: Step, inputs: tuple[str, ...], top_k: int) -> NDArray[np.float64]:
    logits = step.logits.astype(np.float64)
    logprobs = np.sort(logits - math.log(math.fsum(np.exp(logits))))[::-1]
    first, second = np.exp(logprobs[:2])
    entropy = -float(np.exp(logprobs) @ logprobs)
    parts = {
        "hidden": step.hidden,
        "top_logprobs": logprobs[:top_k],
        "scalars": [entropy, first, first - second, logtoku(step.top(EVIDENCE)[1])],
    }
    return np.concatenate([np.asarray(parts[name], np.float64) for name in inputs])


@pytest.mark.parametrize("hidden_layers", [(), (16,), (16, 8)])
@pytest.mark.parametrize(
    "inputs",
    [("hidden",), ("scalars",), ("top_logprobs", "hidden"), ("hidden", "top_logprobs", "scalars")],
)
def test_the_score_is_that_of_a_plain_perceptron(
    tmp_path: Path, inputs: tuple[str, ...], hidden_layers: tuple[int, ...]
) -> None:
    top_k = 5 if "top_logprobs" in inputs else 0
    card = msgspec.structs.replace(CARD, inputs=inputs, top_k=top_k)
    width = sum({"hidden": HIDDEN, "top_logprobs": 5, "scalars": SCALARS}[i] for i in inputs)
    tensors = weights(width, *hidden_layers, 1)
    router = Mlp(card, write(tmp_path / "router", tensors, card))
    for seed in range(5):
        step = step_for(router, seed)
        expected = plain_score(tensors, features_of(step, inputs, top_k))
        assert router.score(step) == pytest.approx(expected, abs=1e-4)


def test_scores_do_not_overflow(tmp_path: Path) -> None:
    tensors = weights(WIDTH, 1)
    for sign, expected in ((1, 1.0), (-1, 0.0)):
        tensors["layers.0.bias"] = np.full(1, sign * 1e30, np.float32)
        router = Mlp(CARD, write(tmp_path / "router", tensors))
        assert router.score(step_for(router)) == expected


def changed(name: str, value: Floats | None) -> Tensors:
    tensors = weights(WIDTH, 8, 1)
    del tensors[name]
    return tensors if value is None else {**tensors, name: value}


BAD = {
    "no mean": changed("mean", None),
    "no bias": changed("layers.1.bias", None),
    "no first layer": changed("layers.0.weight", None),
    "short mean": changed("mean", np.zeros(WIDTH - 1, np.float32)),
    "zero std": changed("std", np.zeros(WIDTH, np.float32)),
    "wide": changed("layers.0.weight", np.zeros((8, WIDTH + 1), np.float32)),
    "flat": changed("layers.0.weight", np.zeros(8 * WIDTH, np.float32)),
    "bias as a column": changed("layers.0.bias", np.zeros((8, 1), np.float32)),
    "bias as a number": changed("layers.0.bias", np.zeros((), np.float32)),
    "two outputs": weights(WIDTH, 8, 2),
    "no layers": weights(WIDTH),
    "nan": changed("layers.0.bias", np.full(8, np.nan, np.float32)),
    "infinite": changed("layers.1.bias", np.full(1, np.inf, np.float32)),
}
BF16 = b'{"mean":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
"""Of a kind that numpy lacks."""
UNREADABLE = [None, b"", b"\xff" * 64, b"\x08" + b"\0" * 7 + b"{}      "]
UNREADABLE.append(len(BF16).to_bytes(8, "little") + BF16 + b"\0\0")


@contextmanager
def refused(kind: type[UsageError] = UsageError, problem: str | None = None) -> Iterator[None]:
    """What is done inside ends in one sentence."""
    with pytest.raises(kind, match=problem) as caught:
        yield
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [*BAD.values(), *UNREADABLE], ids=[*BAD, *map(repr, UNREADABLE)])
def test_a_bad_checkpoint(tmp_path: Path, bad: Tensors | bytes | None) -> None:
    folder = write(tmp_path / "router", bad if isinstance(bad, dict) else weights(WIDTH, 1))
    if bad is None:
        (folder / WEIGHTS).unlink()
    elif isinstance(bad, bytes):
        (folder / WEIGHTS).write_bytes(bad)
    with refused():
        Mlp(CARD, folder)


"""Of a kind that numpy lacks."""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"edge_fingerprint": "x"}, "another file"),
        ({"tokenizer_fingerprint": "x"}, "another tokenizer"),
        ({"hidden_size": 896}, "hidden size 896"),
        ({"kind": "magic"}, "no router 'magic'"),
    ],
)
def test_a_card_that_does_not_fit(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    card = msgspec.structs.replace(CARD, **change)
    folder = write(tmp_path / "router", weights(WIDTH, 1), card)
    edge = ScriptedEdge(noise(), tokenizer=ByteTokenizer())
    with refused(UsageError if "kind" in change else RouterMismatch, problem):
        open_router(Settings(router=str(folder)), edge)


JSON = msgspec.json.encode(CARD)
RANKS = {"inputs": ("ranks",), "top_k": 0}
CALIBRATED = {"thresholds": {"0.05": 0.5}}


def as_json(**change: Any) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(CARD, **change))


@pytest.mark.parametrize(
    "config",
    [
        *(b"", b"\xff\xfe", b"[]", b"{}", b" " * (2 << 20)),
        JSON.replace(b'"mlp"', b"7"),
        JSON.replace(b'"top_logprobs",', b""),
        JSON.replace(b'"format":1', b'"format":2'),
        *(JSON.replace(b'"top_k":5', b'"top_k":' + to) for to in (b"0", b"-5", b'5,"more":1')),
        as_json(thresholds={"many": 0.5}),
        as_json(**CALIBRATED, realised={"0.07": (0.1, 0.1, 0.1)}),
        *(as_json(**CALIBRATED, realised={"0.05": (0.1, *of)}) for of in ((-0.1, 0.1), (0.1, 2))),
        as_json(**RANKS, reference=()),
        *(as_json(**RANKS, reference=(row,) * 3) for row in ((1.0, 0.0), (1.0,))),
        as_json(**RANKS, reference=((0.0, 1.0),) * 2),
    ],
)
def test_a_bad_card(tmp_path: Path, config: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(config)
    with refused():
        cards.read_card(tmp_path)


@pytest.mark.parametrize("rows", [0, 1, 257])
def test_a_token_table_that_is_too_short(tmp_path: Path, rows: int) -> None:
    """One that begins as it should, so that nothing but an answer would notice."""
    card = msgspec.structs.replace(CARD, inputs=("scalars", "token_embedding"), top_k=0)
    tensors = weights(SCALARS, 4, 1)
    folder = tmp_path / "router"
    edge = ScriptedEdge(noise())
    for count in (rows, edge.tokenizer.size):
        table = np.zeros((count, 4), np.float16)
        write(folder, {**tensors, "token_table": table}, card)
        if count == rows:
            with refused(RouterMismatch, rf"knows {rows} tokens"):
                open_router(Settings(router=str(folder)), edge)
    router, _ = open_router(Settings(router=str(folder)), edge)
    assert isinstance(router, Mlp)
    assert 0 <= router.score(step_for(router)) <= 1


def test_a_pipe_is_no_checkpoint(tmp_path: Path) -> None:
    """Nor are weights as large as a disk."""
    for name in (WEIGHTS, CONFIG):
        folder = write(tmp_path / f"pipe {name}", weights(WIDTH, 1))
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with refused():
            open_router(Settings(router=str(folder)), ScriptedEdge(noise()))
    folder = write(tmp_path / "router", weights(WIDTH, 1))
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(MAX_WEIGHTS + 1)
    with refused(UsageError, "1024 MB"):
        Mlp(CARD, folder)


def test_thresholds_lie_between_the_calibrated_ones() -> None:
    card = msgspec.structs.replace(CARD, thresholds={"0.1": 0.5, "0.02": 0.9})
    assert card.threshold(0.02) == 0.9
    assert card.threshold(0.06) == pytest.approx(0.7)
    assert card.threshold(0.3) is None
    assert CARD.threshold(0.1) is None
    assert msgspec.structs.replace(CARD, thresholds={"0.1": 0.5}).threshold(0.1) == 0.5
    # A controller starts from the nearest: never from 0.5, where a low threshold is known.
    starts = [cards.start_at(card.thresholds, share) for share in (0.001, 0.02, 0.3)]
    assert starts == [0.9, 0.9, pytest.approx(0.5)]
    assert cards.start_at(CARD.thresholds, 0.1) is None


def halved(source: Path, path: Path) -> Path:
    """The same weights, rounded to half as many bits."""
    shutil.copy(source, path)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        assert tensor.data.dtype == np.float32
        tensor.data[:] = tensor.data.astype(np.float16)
    return path


def card_of(model: LlamaModel, folder: Path, **more: object) -> Path:
    card = RouterCard(
        kind="entropy",
        edge_fingerprint=model.fingerprint(),
        tokenizer_fingerprint=fingerprint(model.tokenizer),
        hidden_size=model.hidden_size,
        build=model.build,
        behaviour=cards.behaviour_of(model),
        thresholds={"0.05": 0.5},
    )
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(msgspec.json.encode(msgspec.structs.replace(card, **more)))
    return folder


def opened(model: EdgeModel, folder: Path) -> RouterCard:
    _, card = open_router(Settings(router=str(folder)), model)
    assert card is not None
    return card


def test_another_build(bpe_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with LlamaModel(bpe_path, threads=1) as model:
        assert model.build.startswith("llama.cpp, ")
        card = opened(model, card_of(model, tmp_path / "router"))
        assert card.build_warning(model) is None
        assert not caplog.records
        folder = card_of(model, tmp_path / "router", build="onnx, int4")
        whole = cards.behaviour_of(model)
    with LlamaModel(halved(bpe_path, tmp_path / "half.gguf"), threads=1) as half:
        assert 0 < cards.distance(whole, cards.behaviour_of(half)) < 0.1
        with caplog.at_level(logging.WARNING):
            card = opened(half, folder)
        assert card.is_of_another_build(half)
    (record,) = caplog.records
    assert "onnx, int4" in record.getMessage()


def test_no_hidden_states(bpe_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    require_onnx()
    plain = convert(read(bpe_path), "onnx", tmp_path / "onnx")
    with LlamaModel(bpe_path, threads=1) as model:
        reads_none = card_of(model, tmp_path / "entropy")
        reads = card_of(model, tmp_path / "mlp", kind="mlp", inputs=("hidden",))
    with OnnxModel(plain, threads=1, gpu_layers=0) as model:
        assert opened(model, reads_none).is_of_another_build(model)
        assert "another build" in caplog.text
        with pytest.raises(RouterMismatch, match="reads hidden states") as caught:
            opened(model, reads)
        assert caught.value.setting == "router"


@pytest.mark.parametrize("trained", ["anew", "on the same, but the card says no behaviour"])
def test_another_training(bpe_path: Path, tmp_path: Path, trained: str) -> None:
    file, more = tmp_path / "other.gguf", {} if trained == "anew" else {"behaviour": ()}
    other = halved(bpe_path, file) if more else models.write_byte_level(file, seed=9)
    with LlamaModel(bpe_path, threads=1) as model:
        folder = card_of(model, tmp_path / "router", **more)
    with LlamaModel(other, threads=1) as model, pytest.raises(RouterMismatch, match="another file"):
        opened(model, folder)
