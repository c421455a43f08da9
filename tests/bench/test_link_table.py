"""Rows of the link table on scripted models, whose figures are known beforehand."""

from collections.abc import Iterator, Sequence

import pytest

from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import LlamaServer
from edgewise.errors import CloudError, CloudUnavailable, UsageError
from edgewise.routers.untrained import MaxProb
from edgewise.testing.scripted_edge import EOS, ByteTokenizer, ScriptedEdge, replying
from edgewise_lab.bench.link import SYSTEMS, Conditions, LinkBench, LinkRow, http_target
from edgewise_lab.bench.pace import Pace
from edgewise_lab.evaluation.tasks.base import Question, Task
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server_process import free_port

PROMPT, TEXT, OTHER = "q0: ", "the sky is blue.", "the sea is blue."
UNSURE = (5, 12)
"""Where the edge asks: at the first the cloud says otherwise, at the second the same."""

STEP, TRIP = 0.02, 0.08
HALFWAY = Conditions(round_trip=TRIP, share=0.1, threshold=0.3, engine=0.0)


def written(ids: Sequence[int]) -> int:
    """The cloud's text, of the edge's length."""
    offset = len(ids) - len(PROMPT)
    return OTHER.encode()[offset] if offset < len(OTHER) else EOS


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    made = ScriptedEngine(script=written)
    yield made
    made.close()


def task(questions: int) -> Task:
    """Whose answers are right where the cloud helped with them."""
    asked = [
        Question(id=str(n), family="sky", prompt=f"q{n}: ", answer=r"^the se", check="regex")
        for n in range(questions)
    ]
    return Task("sky", tuple(asked), 32)


def connect(url: str) -> CloudModel:
    cloud = LlamaServer(url)
    try:
        cloud.check_vocabulary(ByteTokenizer())
    except CloudError:
        cloud.close()
        raise
    return cloud


def bench(url: str, questions: int = 3) -> LinkBench:
    edge = ScriptedEdge(replying(TEXT, prompt=PROMPT, unsure=UNSURE))
    # A pass over several ids pays.
    pace = Pace((1, 8), (STEP, 1.2 * STEP))
    return LinkBench(edge, MaxProb(), url, connect, pace=pace, task=task(questions))


@pytest.fixture(scope="module")
def row(engine: ScriptedEngine) -> LinkRow:
    return bench(engine.url).row(HALFWAY)


TOKENS = len(TEXT) + 1
"""Of an answer, its end included."""


def test_consults_and_changes_are_those_of_the_script(row: LinkRow) -> None:
    assert row.questions == 3
    assert row.consults == pytest.approx(2 / TOKENS)
    assert row.changed == pytest.approx(1 / 2)
    assert (row.round_trip, row.cloud_share, row.loss) == (TRIP, 0.1, 0.0)


def test_waiting_costs_its_round_trips_and_figures_lie_within_their_intervals(row: LinkRow) -> None:
    assert row.waiting.value * row.step * (TOKENS - 1) >= 2 * TRIP
    for figure in (row.waiting, row.speculating):
        assert figure.low <= figure.value <= figure.high


def test_the_answers_are_the_same_and_graded(row: LinkRow) -> None:
    assert (row.identical, row.failed_calls) == (3, 0)
    right = {"edge": 0.0, "waiting": 1.0, "speculating": 1.0}
    assert dict(zip(SYSTEMS, row.right, strict=True)) == right


def test_every_answer_is_told_and_the_order_turns(engine: ScriptedEngine) -> None:
    told: list[int] = []
    asked = engine.asked
    quick = HALFWAY._replace(round_trip=0.0)
    bench(engine.url, questions=2).row(quick, lambda: told.append(engine.asked - asked))
    assert len(told) == 2 * len(SYSTEMS)
    # The first answer is the edge's alone, after the probe; the two others ask twice each.
    assert told[0] == 1
    assert told[-1] >= 9


def test_an_engines_time_delays_as_the_link_does(engine: ScriptedEngine) -> None:
    """And counts in the bound; a loss is a delay of its own."""
    slow = Conditions(round_trip=0.0, share=0.1, threshold=0.3, engine=TRIP)
    row = bench(engine.url, questions=1).row(slow)
    assert row.bound == pytest.approx(1 + row.consults * row.changed * TRIP / row.step)
    assert row.waiting.value * row.step * (TOKENS - 1) >= 2 * TRIP
    lossy = bench(engine.url, questions=1).row(slow._replace(engine=0.0, loss=1.0))
    assert lossy.loss == 1.0
    assert lossy.waiting.value * lossy.step * (TOKENS - 1) >= 0.2


def test_an_engine_that_is_not_there_is_an_error_and_the_link_is_closed() -> None:
    made = bench(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(CloudUnavailable):
        made.row(HALFWAY)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://localhost:8080", ("localhost", 8080)),
        ("http://localhost", ("localhost", 80)),
        ("http://[::1]:1/", ("::1", 1)),
        *((url, None) for url in ("https://127.0.0.1:1", "http://", "127.0.0.1:80")),
        *((url, None) for url in ("http://127.0.0.1/path", "ftp://x", "http:///x")),
    ],
)
def test_only_plain_http_to_a_host_is_forwarded(url: str, target: tuple[str, int] | None) -> None:
    if target is not None:
        assert http_target(url) == target
    else:
        with pytest.raises(UsageError, match="plain HTTP"):
            http_target(url)
