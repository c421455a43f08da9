"""Signals: one value in one list is an input; LogTokU is what its formula says.

And text as an input: the form and place of a token, the same in training as in decoding.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import cast

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis.extra.numpy import arrays

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeAbilities, EdgeModel, Floats, Needs, Step, Written
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.step import LogitsStep
from edgewise.errors import StaleStepError, UsageError
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, prompt_of
from edgewise.routers import signals
from edgewise.routers.base import Router
from edgewise.routers.signals import EVIDENCE, SIGNALS
from edgewise.routers.text import NAMES, TAIL, text_of
from edgewise.routers.untrained import Entropy, Margin, MaxProb
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, ScriptedEdge, noise
from edgewise_lab.training.collect import Sample, collect_features
from edgewise_lab.training.router import reference_of

VALUES = st.sampled_from([-2.0, 0.0, 1.0, 30.0]) | st.floats(-1e4, 1e4, width=32)


def rows(size: int) -> st.SearchStrategy[Floats]:
    return arrays(np.float32, size, elements=VALUES)


def test_one_value_in_the_list_is_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of no name is refused."""

    def likeliest(step: Step, k: int) -> Floats:
        return step.top(k)[0].astype(np.float32)

    monkeypatch.setitem(
        SIGNALS, "likeliest", signals.Signal("likeliest", likeliest, "k", Needs.TOP)
    )
    inputs, edge = ("likeliest", "scalars"), ScriptedEdge(noise())
    session = edge.session(signals.needs_of(inputs), top=signals.top_of(inputs, 12))
    session.open([1, 2, 3])
    step = session.step()
    found = signals.reader_of(inputs, 12)(step)
    assert len(found) == signals.width_of(inputs, edge.hidden_size, 12)
    assert found[:12].tolist() == step.top(12)[0].tolist()
    with pytest.raises(UsageError, match="smell") as caught:
        signals.needs_of(("hidden", "smell"))
    assert caught.value.setting == "inputs"


@given(logits=rows(EVIDENCE))
@example(logits=np.full(EVIDENCE, -1.0, np.float32))
def test_it_follows_the_paper_and_lies_between_0_and_1(logits: Floats) -> None:
    best = [max(float(x), 0.0) for x in logits]
    found, total = signals.logtoku(logits), math.fsum(best)
    assert 0.0 <= found <= 1.0
    if total == 0.0:
        assert found == 1.0
        return
    aleatoric = -sum(
        x / total * float(mpmath.digamma(x + 1) - mpmath.digamma(total + 1)) for x in best
    )
    expected = aleatoric / math.log(EVIDENCE) * EVIDENCE / (total + EVIDENCE)
    assert found == pytest.approx(expected, abs=1e-8)


ROUTERS: list[Callable[[], Router]] = [MaxProb, Margin, Entropy]
SIZE = 300


def score(router: Router, logits: Floats) -> float:
    buffer = np.empty(len(logits), np.float32)
    step = LogitsStep(1, logits, None, is_fresh=lambda: True, buffer=buffer)
    step.own(router.needs, router.top)
    return router.score(step)


def peaked(gap: float) -> Floats:
    """One id `gap` above a second, the rest far below."""
    logits = np.full(SIZE, 1.0, np.float32)
    logits[[17, 40]] = [20.0, 20.0 - gap]
    return logits


@pytest.mark.parametrize("make", ROUTERS)
@given(logits=st.integers(10, SIZE).flatmap(rows))
def test_scores_lie_between_0_and_1(make: Callable[[], Router], logits: Floats) -> None:
    assert 0.0 <= score(make(), logits) <= 1.0


@pytest.mark.parametrize("make", ROUTERS)
def test_a_certain_step_scores_below_a_divided_one(make: Callable[[], Router]) -> None:
    scores = [score(make(), peaked(gap)) for gap in (15.0, 3.0, 1.0, 0.1)]
    assert scores == sorted(scores)
    assert scores[0] < scores[-1]
    # Where all are equal, rounding leaves no score outside.
    for size, value in product((10, 258, 32_000, 151_936), (-5.0, 0.0, 0.1, 12.3)):
        assert 0.0 <= score(make(), np.full(size, value, np.float32)) <= 1.0


@pytest.mark.parametrize(
    ("router", "probabilities", "expected"),
    [
        (MaxProb(), [0.7, 0.2, 0.1], 0.3),
        (Margin(), [0.1, 0.7, 0.2], 0.5),
        # A share of its greatest value.
        (Entropy(), [*[1 / 8] * 8, *[1e-26] * 56], 0.5),
        (Entropy(), [1 / 64] * 64, 1.0),
    ],
)
def test_a_score_by_hand(router: Router, probabilities: list[float], expected: float) -> None:
    logits = np.log(np.array(probabilities, np.float32))
    assert score(router, logits) == pytest.approx(expected, abs=1e-5)


INPUTS = ("text", "ranks")
RANKED = np.random.default_rng(0).exponential(size=(500, 3)).astype(np.float32)


WORDS = (" is", " the", "ment", " Paris", "Paris", "12", ":", ".\n")


class Words(ByteTokenizer):
    """Some words are ids of their own."""

    def piece(self, token: int) -> bytes:
        return WORDS[token - 300].encode() if token >= 300 else super().piece(token)


class Fixed:
    def __init__(self, prompt: str, answer: str, *likeliest: int) -> None:
        ids = [*prompt.encode(), *answer.encode()]
        self.written = Written(ids, len(prompt.encode()), Words())
        self.proposed = likeliest[0]
        self._likeliest = np.array([*likeliest, EOS][:2], np.int32)

    def top(self, k: int) -> tuple[np.ndarray, Floats]:
        return self._likeliest[:k], np.zeros(k, np.float32)


def fixed(prompt: str, answer: str, *likeliest: int) -> Floats:
    return text_of(cast(Step, Fixed(prompt, answer, *likeliest)))


def told(prompt: str, answer: str, *likeliest: int) -> set[str]:
    """The columns that are 1 of those that are 0 or 1."""
    values = dict(zip(NAMES, fixed(prompt, answer, *likeliest), strict=True))
    measured = {"answer position", "sentence position", "step position", "length"}
    return {name for name, value in values.items() if value == 1.0} - measured


@pytest.mark.parametrize(
    ("answer", "likeliest", "expected"),
    [
        ("", [303], {"first", "letter", "capital", "space", "new word"}),
        ("It is", [303], {"letter", "capital", "space", "new word", "after copula"}),
        ("of the", [303], {"letter", "capital", "space", "new word", "after article"}),
        ("Thus in ", [304], {"letter", "capital", "new word", "after preposition"}),
        ("a gar", [302], {"letter", "inside word"}),
        ("garments was", [302], {"letter", "inside word"}),
        ("so:", [305], {"digit", "new word", "after colon"}),
        ("(A", [306], {"after capital"}),
        ("1", [307], {"line end", "after digit"}),
        ("so", [EOS], {"end"}),
        ("q", [ord("?")], {"in prompt", "after one in prompt"}),
        ("", [303, ord("q")], {"first", "letter", "capital", "space", "new word"}
         | {"second in prompt"}),
        ("x", [ord("x")], {"letter", "inside word", "in answer"}),
    ],
)  # fmt: skip
def test_columns_by_name(answer: str, likeliest: list[int], expected: set[str]) -> None:
    assert told("q?", answer, *likeliest) == expected


def test_a_long_answer_costs_no_more() -> None:
    """Sentence and line are looked for in the last tokens alone, the place in the answer is not."""
    places = NAMES.index("answer position"), NAMES.index("sentence position")
    long, longer = (fixed("q", "a" * n, 301) for n in (2 * TAIL, 9 * TAIL))
    assert long[places[0]] < longer[places[0]]
    assert long[places[1]] == longer[places[1]]
    ended = fixed("q", "a" * 2 * TAIL + ". b", 301)
    assert ended[places[1]] == pytest.approx(np.log1p(2))


def test_text_is_there_only_where_it_is_needed() -> None:
    with closing(ScriptedEdge(noise()).session(signals.needs_of(["scalars"]), top=10)) as session:
        session.open([1, 2])
        with pytest.raises(StaleStepError):
            _ = session.step().written


class Watching:
    """A router that keeps what it reads, by position."""

    def __init__(self) -> None:
        self.needs, self.top = signals.needs_of(INPUTS), signals.top_of(INPUTS, 0)
        self.seen: dict[int, Floats] = {}
        self._read = signals.reader_of(INPUTS, 0, reference_of(RANKED))

    def score(self, step: Step) -> float:
        self.seen[step.position] = self._read(step)
        return float(step.position % 3 == 0)


ABLE = {
    "scripted": EdgeAbilities(),
    "one by one": EdgeAbilities(batch_logits=False),
    "checkpoints": EdgeAbilities(rewinds="checkpoints"),
}


@pytest.fixture(params=[*ABLE, "bundled"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[EdgeModel, CloudModel]]:
    if request.param in ABLE:
        yield ScriptedEdge(noise(), abilities=ABLE[request.param]), ScriptedCloud(noise(1))
        return
    edge = LlamaModel(bundled("edge"), threads=1)
    cloud = LocalCloud(LlamaModel(bundled("cloud"), threads=1))
    with closing(edge), closing(cloud):
        yield edge, cloud


@pytest.mark.parametrize("speculate", [0, 4])
def test_training_reads_what_decoding_reads(
    pair: tuple[EdgeModel, CloudModel], speculate: int, tmp_path: Path
) -> None:
    edge, cloud = pair
    router = Watching()
    policy = Policy(threshold=1.0, speculate=speculate)
    prompt = prompt_of(edge.tokenizer, [Message("user", "What is the capital of Peru?")])
    decoder = Decoder(edge, router=router, policy=policy, cloud=cloud)
    answer = collect(decoder.stream(prompt, max_tokens=24))
    ids = [token.id for token in answer.tokens]
    sample = Sample("q", tuple(prompt.ids), tuple(ids), True)
    columns = collect_features([sample], "own", edge, tmp_path)
    ranks = signals.ranks_of(columns.inputs["ranks"], reference_of(RANKED))
    trained = np.concatenate([columns.inputs["text"], ranks], axis=1)
    decoded = [router.seen[len(prompt.ids) + at] for at in range(len(ids))]
    text = SIGNALS["text"].width
    assert np.array_equal(trained[:, :text], np.array(decoded)[:, :text])
    np.testing.assert_allclose(trained, decoded, atol=0.2)  # ranks: as far as batches round


def test_ranks_say_where_a_value_stands_in_the_edges_own_writing() -> None:
    reference = reference_of(RANKED)
    found = signals.ranks_of(np.sort(RANKED, axis=0), reference)
    assert found.shape == (500, 6)
    assert signals.width_of(["ranks"], 0, 0) == 6
    quantiles, odds = found[:, :3], found[:, 3:]
    assert (np.diff(found, axis=0) >= 0).all()
    assert quantiles.min() > 0.0
    assert quantiles.max() < 1.0
    np.testing.assert_allclose(quantiles.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(odds, np.log(quantiles / (1 - quantiles)), rtol=1e-3, atol=1e-3)
    doubled = signals.ranks_of(np.sort(2 * RANKED, axis=0), reference_of(2 * RANKED))
    np.testing.assert_allclose(doubled, found, atol=1e-3)  # the edge's own scale is gone
