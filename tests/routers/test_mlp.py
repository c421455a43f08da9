"""Router checkpoints: the same score as a plain reference, and one sentence for a bad file."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgewise.edge.base import Floats, Step
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import RouterMismatch, UsageError
from edgewise.opening import open_router
from edgewise.routers.card import CONFIG, WEIGHTS, RouterCard, read_card, start_at
from edgewise.routers.mlp import MAX_WEIGHTS, Mlp
from edgewise.routers.signals import EVIDENCE, logtoku, width_of
from edgewise.settings import Settings
from edgewise.testing.scripted_edge import HIDDEN, ByteTokenizer, ScriptedEdge, noise

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


def plain_score(tensors: Tensors, features: NDArray[np.float64]) -> float:
    """The definition, in float64 and without folding."""
    x = (features - tensors["mean"]) / tensors["std"]
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
    probabilities = np.exp(logprobs)
    parts = {
        "hidden": step.hidden,
        "top_logprobs": logprobs[:top_k],
        "scalars": [
            -float(probabilities @ logprobs),
            probabilities[0],
            probabilities[0] - probabilities[1],
            logtoku(step.top(EVIDENCE)[1]),
        ],
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


@contextmanager
def refused(kind: type[UsageError] = UsageError, problem: str | None = None) -> Iterator[None]:
    """What is done inside ends in one sentence."""
    with pytest.raises(kind, match=problem) as caught:
        yield
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "router", BAD[name])
    with refused():
        Mlp(CARD, folder)


BF16 = b'{"mean":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
"""Of a kind that numpy lacks."""
LACKING = len(BF16).to_bytes(8, "little") + BF16 + b"\0\0"


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff" * 64, b"\x08" + b"\0" * 7 + b"{}      ", LACKING]
)
def test_unreadable_weights(tmp_path: Path, content: bytes | None) -> None:
    folder = write(tmp_path / "router", weights(WIDTH, 1))
    (folder / WEIGHTS).unlink()
    if content is not None:
        (folder / WEIGHTS).write_bytes(content)
    with refused():
        Mlp(CARD, folder)


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


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        msgspec.json.encode(CARD).replace(b'"mlp"', b"7"),
        msgspec.json.encode(CARD).replace(b'"top_k":5', b'"top_k":0'),
        msgspec.json.encode(CARD).replace(b'"top_k":5', b'"top_k":-5'),
        msgspec.json.encode(CARD).replace(b'"top_logprobs",', b""),
        msgspec.json.encode(CARD).replace(b'"top_k":5', b'"top_k":5,"more":1'),
        msgspec.json.encode(CARD).replace(b'"format":1', b'"format":2'),
        b" " * (2 << 20),
        *(
            msgspec.json.encode(msgspec.structs.replace(CARD, **change))
            for change in (
                {"thresholds": {"many": 0.5}},
                {"thresholds": {"0.05": 0.5}, "realised": {"0.07": (0.1, 0.1, 0.1)}},
                {"thresholds": {"0.05": 0.5}, "realised": {"0.05": (0.1, -0.1, 0.1)}},
                {"thresholds": {"0.05": 0.5}, "realised": {"0.05": (0.1, 0.1, 2)}},
                {"inputs": ("ranks",), "top_k": 0, "reference": ()},
                {"inputs": ("ranks",), "top_k": 0, "reference": ((0.0, 1.0),) * 2},
                {"inputs": ("ranks",), "top_k": 0, "reference": ((1.0, 0.0),) * 3},
                {"inputs": ("ranks",), "top_k": 0, "reference": ((1.0,),) * 3},
            )
        ),
    ],
)
def test_a_bad_card(tmp_path: Path, config: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(config)
    with refused():
        read_card(tmp_path)


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


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_pipe_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "router", weights(WIDTH, 1))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with refused():
        open_router(Settings(router=str(folder)), ScriptedEdge(noise()))


def test_weights_as_large_as_a_disk(tmp_path: Path) -> None:
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
    assert [start_at(card.thresholds, share) for share in (0.001, 0.02, 0.3)] == [
        0.9,
        0.9,
        pytest.approx(0.5),
    ]
    assert start_at(CARD.thresholds, 0.1) is None
