"""What a cloud that takes text is billed for: each request that its provider computes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from edgewise.cloud.adapter.word_boundary import REPEATED
from edgewise.edge.base import Floats
from edgewise.events import AnswerCost
from edgewise.pair import Pair
from edgewise.prompts import Message
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, replying
from tests.doubles.chat_reader import Asked, ChatReader, Verdict, all_stand
from tests.doubles.scripted_text import ScriptedText, numbers, tokens
from tests.doubles.text_forms import Wish

ASKED = "Please count in words as I said before now. " * 20
COUNTED = " ".join(["one two three four five six seven eight nine ten", *map(str, range(11, 99))])


Script = Callable[[Sequence[Message], str], str]


def counted(messages: Sequence[Message], answer: str) -> str:
    """What the edge writes too, and what a probe wants to read."""
    return COUNTED[len(answer) :] if COUNTED.startswith(answer) else numbers(messages, answer)


def answered(dialect: str, script: Script) -> tuple[AnswerCost, Sequence[Wish]]:
    """An answer's cost, and the requests that it took."""
    edge = ScriptedEdge(replying(COUNTED, prompt=ASKED), context=8000)
    options: Any = {"router": "constant:1", "threshold": 0.5, "speculate": 0}
    options |= {"price": "1,0.1,10", "redact": "email"}
    with (
        closing(ScriptedText(dialect, script=script)) as server,
        Pair(edge, cloud=server.url, cloud_engine=dialect, **options) as pair,
    ):
        probed = len(server.asked)
        cost = pair.ask(ASKED, max_tokens=250).usage.cost
        return cost, server.asked[probed:]


def test_a_template_that_is_asked_for_is_no_request_of_the_bill() -> None:
    assert answered("llama-server-text", counted)[0] == answered("chat", counted)[0]


def unknown(messages: Sequence[Message], answer: str) -> str:
    """A word that stands for none of the messages'."""
    probed = "Count in words" in messages[0].content
    return numbers(messages, answer) if probed else " <EMAIL_9> and more words behind it"


def anew(messages: Sequence[Message], answer: str) -> str:
    """What was written already, where that is long enough to tell."""
    return COUNTED if len(answer) > REPEATED else counted(messages, answer)


@pytest.mark.parametrize("script", [unknown, anew])
def test_an_answer_that_is_not_usable_is_billed_by_its_meter(script: Script) -> None:
    cost, asked = answered("chat", script)
    prompts = [[*(one.content for one in wish.messages), wish.answer] for wish in asked]
    billed = sum(len(tokens(text)) for prompt in prompts for text in prompt)
    assert (cost.input_tokens + cost.cached_tokens, cost.output_tokens) == (billed, 8 * len(asked))
    assert len(asked) > 1


QUESTION = "Please say what two and two are. " * 8
OPENED = "Two and two are five, as is well known by now. " * 3 + "\n\nAnd so on.\n"
WHOLE = "A whole answer."


def nothing_stands(asked: Asked) -> Verdict:
    return (0, "No.") if not asked.answer.strip() else all_stand(asked)


def whole_by_reader(*, counts: bool = True, **options: Any) -> tuple[AnswerCost, int]:
    """The cost of a whole answer by a cloud that reads, and how many passages it read before."""
    edge = ScriptedEdge(replying(OPENED, prompt=QUESTION), context=8000)
    options |= {"cloud_engine": "openai", "price": "1,1,20"}
    with (
        closing(ChatReader(nothing_stands)) as served,
        Pair(edge, cloud=served.url, **options) as pair,
    ):
        served.counts = counts
        answers = [pair.ask(QUESTION, max_tokens=300) for _ in range(2)]
    assert answers[-1].text == WHOLE
    cost = answers[-1].usage.cost
    return cost, len(served.asked)


@pytest.mark.parametrize(
    ("options", "reads"), [({"cloud_share": 1.0}, False), ({"escalate": 0.5}, True)]
)
def test_a_whole_answer_is_measured_by_its_prompt(options: Mapping[str, Any], reads: bool) -> None:
    """Seen: as if sent behind the edge's words and instructions, it was 12 times too dear."""
    cost, read = whole_by_reader(**options)
    assert bool(read) is reads
    alone = len(QUESTION.strip()) + 20 * len(WHOLE)
    assert 1e6 * cost.alone == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("each", [0.5, 1.0, 2.0])
def test_what_a_verdict_drops_is_nothing_that_the_cloud_alone_costs(each: float) -> None:
    """Seen: of drafts that count otherwise in the cloud's tokens the rest was the prompt's."""

    def script(ids: Sequence[int]) -> Floats:
        ended = bytes(one for one in ids if one < EOS).endswith(b"No, nobody says so.")
        return replying("" if ended else OPENED, prompt=QUESTION)(ids)

    with closing(ChatReader(lambda asked: (0, "No, nobody says so."))) as served:
        served.each = each
        edge, price = ScriptedEdge(script, context=8000), "1,1,20"
        with Pair(edge, cloud=served.url, cloud_engine="openai", price=price) as pair:
            answer = pair.ask(QUESTION, max_tokens=300)
    cost = answer.usage.cost
    assert (answer.text, len(served.asked)) == ("No, nobody says so.", 1)
    alone = each * (len(QUESTION.strip()) + 20 * len(answer.tokens))
    assert 1e6 * cost.alone == pytest.approx(alone, rel=0.05)


def test_a_whole_answer_without_a_report_is_billed_for_what_was_asked_for() -> None:
    cost, _ = whole_by_reader(counts=False, cloud_share=1.0)
    assert (cost.input_tokens, cost.output_tokens) == (len(QUESTION), 300)
