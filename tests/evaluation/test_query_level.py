"""Routing whole questions: which go to the cloud, and how many."""

from hypothesis import given
from hypothesis import strategies as st

from edgewise_lab.evaluation.systems import Outcome, cloud_share, query_level
from tests.evaluation.outcomes import outcome

sizes = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=12
)


def answered(name: int, tokens: int, unsure: float, *, by_cloud: bool) -> Outcome:
    text, cloud = ("cloud", tokens) if by_cloud else ("edge", 0)
    told = {"text": text, "output_tokens": tokens, "cloud_tokens": cloud, "uncertainty": unsure}
    return outcome(name, right=by_cloud, **told)


@given(sizes=sizes, share=st.floats(0.01, 1.0))
def test_whole_questions_stay_within_the_share(
    sizes: list[tuple[int, int, float]], share: float
) -> None:
    edges = [answered(i, e, u, by_cloud=False) for i, (e, _, u) in enumerate(sizes)]
    clouds = [answered(i, c, 0.0, by_cloud=True) for i, (_, c, _) in enumerate(sizes)]
    found = query_level(edges, clouds, share)
    assert [o.question for o in found] == [o.question for o in edges]
    assert cloud_share(found) <= share + 1e-9
    sent = [o.uncertainty for o in found if o.text == "cloud"]
    kept = [o.uncertainty for o in found if o.text == "edge"]
    assert not sent or not kept or min(sent) >= max(kept)
    if share == 1.0:
        assert not kept


def test_scores_of_a_router_come_before_the_answers_own_uncertainty() -> None:
    edges = [answered(i, 10, unsure, by_cloud=False) for i, unsure in enumerate((0.9, 0.1, 0.5))]
    clouds = [answered(i, 10, 0.0, by_cloud=True) for i in range(3)]
    by_answer = query_level(edges, clouds, 0.4)
    by_router = query_level(edges, clouds, 0.4, scores=[0.2, 0.8, 0.1])
    assert [o.text for o in by_answer] == ["cloud", "edge", "edge"]
    assert [o.text for o in by_router] == ["edge", "cloud", "edge"]
