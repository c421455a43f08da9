"""A simulated reader lets stand what its cloud would, and writes the sentence that it would not."""

from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.able_reader import AbleReader

PROMPT = "Q: sum? A:"
RIGHT = "Two and two are four, as is known. So it is. And that is all of it.\n\nThe end.\n"


def answered(edge: str, cloud: str = RIGHT) -> Answer:
    small = ScriptedEdge(replying(edge, prompt=PROMPT))
    large = ScriptedCloud(replying(cloud, prompt=PROMPT), verifies=True)
    policy = Policy(verify="on", deadline=60)
    reader = AbleReader(large, small.tokenizer)
    return Decoder(small, router=Constant(0.0), policy=policy, cloud=reader).generate(
        list(PROMPT.encode())
    )


def test_the_sentence_with_a_rejected_token_is_the_clouds() -> None:
    answer = answered(RIGHT.replace("four", "five").replace("it is", "is it"))
    assert answer.text == RIGHT
    by_cloud = "".join(token.text for token in answer.tokens if token.source == "cloud")
    assert by_cloud == "Two and two are four, as is known. So it is."


def test_what_the_cloud_would_have_written_stands() -> None:
    answer = answered(RIGHT)
    assert answer.text == RIGHT
    assert answer.usage.cloud_tokens == 0


def test_the_cloud_ends_an_answer_that_goes_on() -> None:
    assert answered(RIGHT + " Or it is not so, who knows it?\n").text.startswith(RIGHT)
