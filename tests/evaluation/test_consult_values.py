"""What a consult is worth: which changed a token, which decided an answer, what scores say."""

from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.routers.uncertainty import Entropy
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.consults import Spread, Weighed, curve, spread, weigh
from edgewise_lab.evaluation.systems import Decoded, paired
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

PROMPT = "How many?"
EDGE, CLOUD = "A: 7.", "B: 8."
DECISIVE = EDGE.index("7")


class At:
    """Scores some positions of the answer high."""

    needs, top = Needs.NOTHING, 0

    def __init__(self, *positions: int) -> None:
        self._positions = [len(PROMPT) + position for position in positions]

    def score(self, step: Step) -> float:
        return 0.9 if step.position in self._positions else 0.1


def weighed(*positions: int, answer: str = "8", text: str = "number") -> list[Weighed]:
    question = Question("q", "sums", PROMPT, answer, text)  # type: ignore[arg-type]
    return weigh(
        ScriptedEdge(replying(EDGE, prompt=PROMPT)),
        ScriptedCloud(replying(CLOUD, prompt=PROMPT)),
        At(*positions),
        0.5,
        Task("sums", (question,), 20),
    )


def only(found: list[Weighed]) -> Spread:
    (one,) = spread(found)
    return one


def test_every_position_is_weighed_against_the_other_model() -> None:
    found = weighed(0)
    assert [one.index for one in found] == list(range(len(EDGE) + 1))
    assert [one.index for one in found if one.differ] == [0, DECISIVE]
    assert [one.index for one in found if one.consulted] == [0]
    assert [one.index for one in found if one.value] == [DECISIVE]


def test_a_consult_may_change_a_token_and_no_outcome() -> None:
    told = only(weighed(0))
    assert (told.questions, told.consults, told.changed, told.mattered) == (1, 1, 1, 0)
    assert (told.harmed, told.missed) == (0, 1)


def test_a_consult_that_mattered_is_replayed_with_the_edges_token() -> None:
    told = only(weighed(1, DECISIVE))
    assert (told.consults, told.changed, told.mattered, told.missed) == (2, 1, 1, 0)


def test_a_consult_may_harm() -> None:
    told = only(weighed(DECISIVE, answer="7"))
    assert (told.mattered, told.harmed, told.missed) == (0, 1, 0)


def test_the_strict_reading_has_values_of_its_own() -> None:
    """By the number alone the consult matters; nothing concludes as the strict reading asks."""
    told = only(weighed(DECISIVE))
    assert (told.mattered, told.strict_mattered) == (1, 0)
    exact = only(weighed(0, DECISIVE, answer=CLOUD, text="exact"))
    assert (exact.mattered, exact.strict_mattered, exact.strict_missed) == (2, 2, 0)


def test_the_edges_end_is_a_token_like_any_other() -> None:
    """The cloud goes on where the edge ends, and the other way round."""
    question = Question("q", "f", PROMPT, "yes, no", "exact")
    found = weigh(
        ScriptedEdge(replying("yes", prompt=PROMPT)),
        ScriptedCloud(replying("yes, no", prompt=PROMPT)),
        At(3, 4, 5, 6),
        0.5,
        Task("f", (question,), 20),
    )
    assert [one.value for one in found if one.consulted] == [1, 1, 1, 1]


scored = st.lists(
    st.builds(
        Weighed,
        question=st.sampled_from("abc"),
        family=st.just("f"),
        index=st.integers(0, 9),
        score=st.sampled_from([0.0, 0.1, 0.5, 0.9]) | st.floats(0, 1),
        consulted=st.booleans(),
        differ=st.booleans(),
        value=st.integers(-1, 1),
        strict_value=st.integers(-1, 1),
    ),
    min_size=1,
    max_size=40,
)


def test_the_mean_of_equal_scores_is_that_score() -> None:
    score = 0.9001862057596266
    assert sum([score] * 3) / 3 < score
    position = Weighed("a", "f", 0, score, False, False, 0, 0)
    assert [one.score for one in curve([position] * 3)] == [score]


@given(scored)
def test_a_curve_has_every_position_once_in_the_order_of_its_score(found: list[Weighed]) -> None:
    bins = curve(found, (0.5, 0.9))
    assert 1 <= len(bins) <= 3
    assert sum(one.positions for one in bins) == len(found)
    assert all(low.high < high.low for low, high in pairwise(bins))
    total = sum(one.value * one.positions for one in bins)
    assert total == pytest.approx(sum(one.value for one in found))
    for one in bins:
        assert one.low <= one.score <= one.high
        assert one.interval[0] <= one.value + 1e-12
        assert one.value <= one.interval[1] + 1e-12


def test_the_bundled_pair() -> None:
    """The figures are those of the pair's own answers."""
    task = pocketqa("test").first(4)
    with (
        closing(LlamaModel(bundled("edge"), threads=1, slots=2)) as edge,
        closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1, slots=2))) as cloud,
    ):
        found = weigh(edge, cloud, Entropy(), 0.3, task)
        pair = Decoded(paired(edge, Entropy(), 0.3, cloud), task.max_tokens)
        answers = [pair.answer(question) for question in task.questions]
    assert len(found) == sum(answer.output_tokens for answer in answers)
    told = spread(found)
    assert [one.family for one in told] == list(task.families)
    assert sum(one.consults for one in told) == sum(answer.consults for answer in answers)
    assert sum(one.changed for one in told) == sum(answer.changed for answer in answers)
    for one in told:
        assert one.mattered + one.harmed <= one.changed <= one.consults
