"""The oracle recovers what the cloud can, with no more tokens than it needs."""

from hypothesis import given
from hypothesis import strategies as st

from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.oracle import Oracle
from edgewise_lab.evaluation.systems import Outcome, edge_alone
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_right

PROMPT = "How many?"
QUESTION = Question("q", "steps", PROMPT, "7", "number")


def consult(edge: str, cloud: str) -> Outcome:
    """The oracle over two models that write fixed texts, whatever was written before."""
    models = [ScriptedEdge(replying(text, prompt=PROMPT)) for text in (edge, cloud)]
    oracle = Oracle(*models, max_tokens=64)
    found = oracle.answer(QUESTION)
    oracle.close()
    assert [model.sessions for model in models] == [0, 0]
    return found


def test_only_the_token_that_decides_is_asked_for() -> None:
    found = consult("Well, the answer is 3.", "Yes!, the answer is 7.")
    assert (found.right, found.cloud_tokens, found.changed) == (True, 1, 1)
    assert found.output_tokens == len("Well, the answer is 7.") + 1


@given(
    edge=st.text("1234567 ", min_size=1, max_size=12),
    cloud=st.text("1234567 ", min_size=1, max_size=12),
)
def test_whatever_the_cloud_gets_right_the_oracle_gets_right(edge: str, cloud: str) -> None:
    found = consult(edge, cloud)
    assert found.right == (is_right(QUESTION, edge) or is_right(QUESTION, cloud))
    if is_right(QUESTION, edge) or not found.right:
        assert found.cloud_tokens == 0
    else:
        assert 1 <= found.cloud_tokens <= max(len(edge), len(cloud)) + 1


texts = st.text("1234567 ", min_size=1, max_size=12)
contexts = st.integers(len(PROMPT), len(PROMPT) + 14)


@given(edge=texts, cloud=texts, edge_context=contexts, cloud_context=contexts)
def test_an_answer_ends_with_the_context(
    edge: str, cloud: str, edge_context: int, cloud_context: int
) -> None:
    """Whatever fits: the edge's own answer, the cloud's as far as both go, and the pair's."""
    models = [
        ScriptedEdge(replying(text, prompt=PROMPT), context=context)
        for text, context in ((edge, edge_context), (cloud, cloud_context))
    ]
    oracle = Oracle(*models, max_tokens=20)
    found = oracle.answer(QUESTION)
    oracle.close()
    alone = edge_alone(models[0], 20).answer(QUESTION)
    assert found.output_tokens <= edge_context - len(PROMPT) + 1
    assert found.cloud_tokens <= cloud_context - len(PROMPT) + 1
    assert found.right >= alone.right
    if not found.cloud_tokens:
        assert found.text == alone.text
    if edge_context <= cloud_context:
        cut = cloud[: edge_context - len(PROMPT) + 1]
        assert found.right == (alone.right or is_right(QUESTION, cut))
