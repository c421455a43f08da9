"""What a few requests tell of an API that takes text: whether it goes on, what of its blanks."""

import asyncio
from contextlib import closing

import pytest

from edgewise.advice import cloud_pace
from edgewise.cloud.bridge.capabilities import Capabilities, capabilities
from edgewise.cloud.bridge.text import TextCloud
from edgewise.engines.base import NOBODY
from edgewise.engines.replies import TextContinuation
from edgewise.errors import CloudRejected, CloudUnavailable
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cloud.text_engine import Speaks, TextDouble, writing


def always(text: str) -> Speaks:
    return lambda answer: text


def found(engine: TextDouble) -> Capabilities:
    return asyncio.run(capabilities(engine))


def test_one_that_goes_on_is_exact() -> None:
    engine = TextDouble()
    assert found(engine) == Capabilities()
    assert engine.asked == ["one two three fo", "one two three four", "one two three four "]
    assert found(engine).in_words == "exact, keeps blanks"


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("echoes", [False, True])
def test_what_becomes_of_blanks(echoes: bool, trims: bool) -> None:
    assert found(TextDouble(echoes=echoes, trims=trims)) == Capabilities(echoes=echoes, trims=trims)
    with pytest.raises(CloudRejected, match="drops the blank"):
        found(TextDouble(echoes=echoes, trims=trims, strips=True))


def test_blanks_behind_that_are_not_taken_are_never_sent() -> None:
    engine = TextDouble()

    def declines(number: int) -> CloudRejected | None:
        return CloudRejected("no.") if engine.asked[number][-1] == " " else None

    engine.fault = declines
    assert found(engine).trims


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "one two three four five six",
        "Sure! Here are the numbers from one to ten",
        "I will count from one to ten as you say",
    ],
)
def test_one_that_begins_anew_is_refused(text: str, strips: bool) -> None:
    engine = TextDouble(writing(text), restarts=True, strips=strips)
    with pytest.raises(CloudRejected, match=r"begins an answer anew .* it added"):
        found(engine)
    assert len(engine.asked) <= 3


def test_one_that_takes_the_beginning_for_a_turn_of_its_own_is_refused() -> None:
    def speaks(answer: str) -> str:
        begun = answer.split()
        return {"fo": "four five six", "sev": "seven eight nine ten"}.get(begun[-1], "ten")

    with pytest.raises(CloudRejected, match="begins an answer anew"):
        found(TextDouble(speaks))


@pytest.mark.parametrize(
    "speaks",
    [
        writing(""),
        writing("A heron is a bird."),
        always(" la" * 20),
        always("x" * 40),
        always(""),
    ],
)
def test_a_model_that_cannot_count_may_go_on_all_the_same(speaks: Speaks) -> None:
    seen = found(TextDouble(speaks))
    assert not seen.echoes


def test_an_api_that_does_not_take_the_beginning_is_refused() -> None:
    engine = TextDouble(fault=lambda number: CloudRejected("declined (HTTP 400: 'last role')."))
    with pytest.raises(CloudRejected, match=r"does not take the beginning .*last role"):
        found(engine)
    wrong = CloudRejected("no such model.", setting="cloud_model")
    with pytest.raises(CloudRejected, match=r"^no such model") as refused:
        found(TextDouble(fault=lambda number: wrong))
    assert refused.value.setting == "cloud_model"
    with pytest.raises(CloudUnavailable):
        found(TextDouble(fault=lambda number: CloudUnavailable("busy.")))


def test_an_echo_that_leaves_no_room_is_refused() -> None:
    class Full(TextDouble):
        async def complete(self, request, client=NOBODY):  # type: ignore[no-untyped-def]
            await super().complete(request, client)
            return TextContinuation(text=request.answer, ended=False)

    with pytest.raises(CloudRejected, match="begins an answer anew"):
        found(Full(echoes=True))


def test_a_pace_is_measured_with_as_long_a_prompt_as_the_engine_takes() -> None:
    edge, full = ByteTokenizer(), CloudRejected("too long.")
    engine = TextDouble(writing("one two three four five"))
    with closing(TextCloud(engine, edge=edge)) as cloud:
        longest = cloud_pace(cloud, edge, 30.0, lines=(70, 12))
        engine.fault = lambda number: full if len(str(engine.told[-1])) > 4000 else None
        shorter = cloud_pace(cloud, edge, 30.0, lines=(70, 12))
        assert 4000 < 2 * shorter.tokens < longest.tokens
        assert (longest.computed, shorter.computed) == (None, None)  # a meter of nothing is none
        engine.fault = lambda number: full
        with pytest.raises(CloudRejected, match="too long"):
            cloud_pace(cloud, edge, 30.0, lines=(70, 12))
