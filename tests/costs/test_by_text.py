"""What a cloud that takes text is billed for: each request that its provider computes."""

from collections.abc import Callable, Sequence
from contextlib import closing

from edgewise.events import AnswerCost
from edgewise.pair import Pair
from edgewise.prompts import Message
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.scripted_text import ScriptedText, numbers

ASKED = "Please count in words as I said before now. " * 20
COUNTED = "one two three four five six seven eight nine ten " * 6


def counted(messages: Sequence[Message], answer: str) -> str:
    """What the edge writes too, and what a probe wants to read."""
    return COUNTED[len(answer) :] if COUNTED.startswith(answer) else numbers(messages, answer)


def cost_by(dialect: str, script: Callable[[Sequence[Message], str], str]) -> AnswerCost:
    edge = ScriptedEdge(replying(COUNTED, prompt=ASKED), context=8000)
    with (
        closing(ScriptedText(dialect, script=script)) as server,
        Pair(
            edge,
            cloud=server.url,
            cloud_engine=dialect,
            router="constant:1",
            threshold=0.5,
            speculate=0,
            price="1,0.1,10",
        ) as pair,
    ):
        cost = pair.ask(ASKED, max_tokens=250).usage.cost
    assert cost is not None
    return cost


def test_a_template_that_is_asked_for_is_no_request_of_the_bill() -> None:
    assert cost_by("llama-server-text", counted) == cost_by("chat", counted)
