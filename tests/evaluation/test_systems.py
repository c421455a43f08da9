"""The systems that are compared: what each answers, and what it says that this cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant, Margin
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from edgewise_lab.evaluation.able_reader import AbleReader
from edgewise_lab.evaluation.systems import (
    CloudAlone,
    Decoded,
    Outcome,
    changed_share,
    cloud_share,
    edge_alone,
    paired,
    query_level,
)
from edgewise_lab.evaluation.tasks.base import Question
from tests.evaluation.outcomes import outcome

PROMPT = "Which?"
QUESTION = Question("q", "zoo", PROMPT, "dog", "choice", choices=("cat", "dog"))
EDGE = "It is a cat."
CLOUD = "I am a dog."


def edge(text: str = EDGE, *, unsure: tuple[int, ...] = ()) -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT, unsure=unsure))


def cloud(text: str = CLOUD) -> ScriptedCloud:
    return ScriptedCloud(replying(text, prompt=PROMPT))


def test_the_edge_alone_asks_nobody() -> None:
    found = edge_alone(edge(), 40).answer(QUESTION)
    assert (found.question, found.family, found.text) == ("q", "zoo", EDGE)
    assert (found.right, found.cloud_tokens, found.consults, found.failed) == (False, 0, 0, 0)
    assert (found.cached, found.computed) == (0, 0)
    assert found.output_tokens == len(EDGE) + 1
    assert found.seconds > 0
    # How sure it was is a mean.
    sure, unsure = (
        edge_alone(model, len(EDGE) + 1, Margin()).answer(QUESTION)
        for model in (edge(), edge(unsure=(0, 3, 4)))
    )
    assert sure.uncertainty == pytest.approx(0.0, abs=1e-6)
    assert unsure.uncertainty == pytest.approx(3 / (len(EDGE) + 1), rel=0.2)
    assert not sure.cut


def test_the_cloud_alone_is_one_consult() -> None:
    model = cloud()
    found = CloudAlone(model, ByteTokenizer(), len(CLOUD) + 1).answer(QUESTION)
    assert (found.text, found.right, found.cut) == (CLOUD, True, False)
    assert found.output_tokens == found.cloud_tokens == len(CLOUD) + 1
    assert found.consults == 1
    assert (found.cached, found.computed) == (None, None), "a scripted cloud has no meter"
    assert model.asks == [(tuple(PROMPT.encode()), len(CLOUD) + 1)]


def test_the_longest_answer_is_kept() -> None:
    pair = Decoded(paired(edge(), Constant(1.0), 0.5, cloud()), 5)
    systems = (edge_alone(edge(), 5), CloudAlone(cloud(), ByteTokenizer(), 5), pair)
    for system, text in zip(systems, (EDGE, CLOUD, CLOUD), strict=True):
        found = system.answer(QUESTION)
        assert (found.text, found.cut) == (text[:5], True)


@pytest.mark.parametrize(("score", "text", "share"), [(0.4, EDGE, 0.0), (0.5, CLOUD, 1.0)])
def test_a_pair_asks_from_its_threshold_on(score: float, text: str, share: float) -> None:
    found = Decoded(paired(edge(), Constant(score), 0.5, cloud()), 40).answer(QUESTION)
    assert (found.text, cloud_share([found])) == (text, share)


def test_tokens_that_changed_are_counted() -> None:
    """Every token is asked for; most of the cloud's are other ones."""
    found = Decoded(paired(edge(), Constant(1.0), 0.5, cloud()), 40).answer(QUESTION)
    differ = sum(a != b for a, b in zip(CLOUD, EDGE, strict=False)) + 1
    assert found.consults == len(CLOUD) + 1
    assert found.changed == differ
    assert changed_share([found]) == differ / found.consults


def test_shares_are_of_all_tokens_together() -> None:
    few, many = (
        outcome(output_tokens=tokens, cloud_tokens=asked, consults=asked)
        for tokens, asked in ((10, 10), (90, 0))
    )
    assert cloud_share([few, many]) == 0.1
    assert cloud_share([few, replace(many, wasted_tokens=10)]) == 0.2
    assert changed_share([few, many]) == 0.0
    assert changed_share([many]) is None


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


SUM = "Q: sum? A:"
FOUR = "Two and two are four, as is known. So it is. And that is all of it.\n\nThe end.\n"


def read(edge: str) -> Answer:
    """What a simulated reader lets stand, and mends."""
    small = ScriptedEdge(replying(edge, prompt=SUM))
    large = ScriptedCloud(replying(FOUR, prompt=SUM), verifies=True)
    policy = Policy(verify="on", deadline=60)
    reader = AbleReader(large, small.tokenizer)
    decoder = Decoder(small, router=Constant(0.0), policy=policy, cloud=reader)
    return decoder.generate(list(SUM.encode()))


def test_a_reader_writes_the_sentence_in_which_its_cloud_rejects_a_token() -> None:
    answer = read(FOUR.replace("four", "five").replace("it is", "is it"))
    assert answer.text == FOUR
    by_cloud = "".join(token.text for token in answer.tokens if token.source == "cloud")
    assert by_cloud == "Two and two are four, as is known. So it is."
    # What the cloud would have written stands; it ends an answer that goes on.
    answer = read(FOUR)
    assert (answer.text, answer.usage.cloud_tokens) == (FOUR, 0)
    assert read(FOUR + " Or it is not so, who knows it?\n").text.startswith(FOUR)
