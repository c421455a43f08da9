"""The oracle recovers what the cloud can, with no more tokens than it needs."""

from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.scripted import ScriptedEdge, replying
from edgewise.evaluation.oracle import Oracle
from edgewise.evaluation.questions import Question, is_right, pocketqa
from edgewise.evaluation.systems import Outcome, alone, ask, outcomes

PROMPT = "How many?"


def consult(edge: str, cloud: str, answer: str) -> Outcome:
    """The oracle over two models that write fixed texts, whatever was written before."""
    question = Question("q", "steps", "test", PROMPT, answer, reference="")
    models = [ScriptedEdge(replying(text, prompt=PROMPT)) for text in (edge, cloud)]
    oracle = Oracle(*models)
    found = oracle.answer(question)
    oracle.close()
    assert [model.sessions for model in models] == [0, 0]
    return found


def test_only_the_token_that_decides_is_asked_for() -> None:
    found = consult("Well, the answer is 3.", "Yes!, the answer is 7.", "7")
    assert (found.right, found.cloud_tokens, found.changed) == (True, 1, 1)
    assert found.output_tokens == len("Well, the answer is 7.") + 1


def test_an_edge_that_is_right_asks_for_nothing() -> None:
    assert consult("It is 7.", "So: 7!", "7").cloud_tokens == 0


def test_a_cloud_that_is_wrong_is_not_asked() -> None:
    found = consult("It is 3.", "It is 4.", "7")
    assert (found.right, found.cloud_tokens) == (False, 0)


@given(
    edge=st.text("1234567 ", min_size=1, max_size=12),
    cloud=st.text("1234567 ", min_size=1, max_size=12),
)
def test_whatever_the_cloud_gets_right_the_oracle_gets_right(edge: str, cloud: str) -> None:
    question = Question("q", "steps", "test", PROMPT, "7", reference="")
    found = consult(edge, cloud, "7")
    assert found.right == (is_right(question, edge) or is_right(question, cloud))
    if is_right(question, edge) or not found.right:
        assert found.cloud_tokens == 0
    else:
        assert 1 <= found.cloud_tokens <= max(len(edge), len(cloud)) + 1


def test_the_bundled_pair() -> None:
    questions = pocketqa("test")[:12]
    with LlamaModel(bundled("edge"), threads=1) as edge, LlamaModel(bundled("cloud")) as cloud:
        oracle = Oracle(edge, cloud)
        found = [oracle.answer(question) for question in questions]
        oracle.close()
        by_edge, by_cloud = outcomes(alone(edge), questions), outcomes(alone(cloud), questions)
        assert [o.right for o in found] == [
            e.right or c.right for e, c in zip(by_edge, by_cloud, strict=True)
        ]
        unasked = next(o for o in found if not o.cloud_tokens)
        question = next(q for q in questions if q.id == unasked.question)
        assert len(ask(alone(edge), question).tokens) == unasked.output_tokens
