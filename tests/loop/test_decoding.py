"""The loop, on scripted models: provenance, stops, faults; what is sent and given back."""

import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import connect
from edgewise.cloud.local import LocalCloud
from edgewise.cloud.record import SentAnswer, SentRecord
from edgewise.completion import Completion
from edgewise.edge.base import Floats
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    ContextOverflow,
    UsageError,
)
from edgewise.events import Consult, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.health import FAILURES, FIRST_PAUSE, Breaker
from edgewise.loop.policy import Budget, Policy
from edgewise.loop.state import ENDLESS, HeldText
from edgewise.prompts import Message, Prompt
from edgewise.routers.thresholds import own_scores
from edgewise.routers.untrained import Constant, MaxProb
from edgewise.sampling import Sampling
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise, replying
from edgewise.testing.scripted_cloud import ID_BYTES, ScriptedCloudSession
from edgewise.testing.scripted_edge import EOS, SIZE
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.scripted_engine import Edited
from tests.doubles.scripted_text import ScriptedText, TextMisdeed
from tests.doubles.wrapped_cloud import HeldCloud
from tests.gateway.processes import until

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())
ASKING = Policy(threshold=0.3)


def cloud_saying(text: str, **options: Any) -> ScriptedCloud:
    return ScriptedCloud(replying(text, prompt=PROMPT), **options)


def asking(
    cloud: CloudModel | None,
    policy: Policy = ASKING,
    *,
    text: str = "blue",
    unsure: Sequence[int] = (),
    **more: Any,
) -> Decoder:
    """Asks for every token, unless the edge is `unsure` at some alone."""
    return Decoder(
        ScriptedEdge(replying(text, prompt=PROMPT, unsure=unsure)),
        router=MaxProb() if unsure else Constant(1.0),
        policy=policy,
        cloud=cloud,
        **more,
    )


@pytest.mark.parametrize(
    "policy",
    [
        Policy(cloud_share=0.0),
        Policy(cloud_share=0.3).edge_alone(),
        Policy(threshold=0.0, max_cloud_tokens=0),
        Policy(cloud_share=0.5, max_cloud_tokens=0),
    ],
)
def test_nothing_is_opened_that_the_policy_can_never_use(policy: Policy) -> None:
    cloud = ScriptedCloud(noise())
    assert asking(cloud, policy).generate(IDS).text == "blue"
    assert (cloud.opened, cloud.prefetched, cloud.asks) == (0, [], [])


def test_what_is_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    # The prompt and every token, and never a draft.
    cloud = cloud_saying("gray sky", delay=0.05)
    decoder = asking(cloud, Policy(threshold=0.3, speculate=8), text="grey sky", unsure=(2,))
    assert decoder.generate(IDS).text == "gray sky"
    whole = tuple(IDS) + tuple(b"gray sky")
    assert cloud.prefetched[0] == tuple(IDS)
    assert all(ids == whole[: len(ids)] for ids in cloud.prefetched)
    # Nothing once the cap is spent.
    cloud = cloud_saying("blue sky today")
    asking(cloud, Policy(max_cloud_tokens=2), text="blue sky today").generate(IDS)
    assert len(cloud.asks) == 2
    assert [len(ids) - len(IDS) for ids in cloud.prefetched] == [0, 1]
    # Nothing to a cloud that is gone.
    cloud, sent = cloud_saying("blue", fault=lambda _: CloudUnavailable("gone")), list[int]()
    for event in asking(cloud, text="blue " * 8).stream(IDS, max_tokens=30):
        if isinstance(event, Token) and event.reason == "circuit_open":
            sent.append(len(cloud.prefetched))
    assert sent[0] == sent[-1]
    # Where a cloud prefetches nothing no token is offered, nor recorded: most would cost that.
    cloud = cloud_saying("blue sky")
    monkeypatch.setattr(ScriptedCloud, "prefetches", False)
    monkeypatch.setattr(SentAnswer, "prefetch", None)
    assert asking(cloud, text="blue sky").generate(IDS).text == "blue sky"
    assert cloud.prefetched == []


@pytest.mark.parametrize("stage", ["record", "open", "prefetch"])
def test_an_answer_that_cannot_begin_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def fail(*_: object) -> Any:
        raise RuntimeError("no room")

    broken = {
        "record": (SentRecord, "answer"),
        "open": (ScriptedCloud, "open"),
        "prefetch": (ScriptedCloudSession, "prefetch"),
    }
    monkeypatch.setattr(*broken[stage], fail)
    cloud = ScriptedCloud(noise())
    decoder = asking(cloud, record=SentRecord())
    with pytest.raises(RuntimeError):
        decoder.stream(IDS)
    assert decoder.edge.sessions == 0  # type: ignore[attr-defined]
    assert cloud.closed == cloud.opened == (stage == "prefetch")


def test_closing_in_the_middle_cancels_closes_and_charges() -> None:
    cloud = HeldCloud()
    decoder = asking(cloud, Policy(cloud_share=0.5, speculate=4, deadline=30))
    with decoder.stream(IDS, pending=True) as events:
        next(events)
    assert all(future.cancelled() for future in cloud.flying)
    assert (decoder.edge.sessions, cloud.scripted.closed) == (0, 1)  # type: ignore[attr-defined]
    asked = sum(n for _, n in cloud.scripted.asks)
    assert asked >= 1
    assert events.budget.bucket == Budget().bucket - asked


def test_a_session_that_cannot_even_be_asked_is_a_fault_like_any_other() -> None:
    def refuse(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        raise CloudUnavailable("gone.")

    seen = list(asking(WrappedCloud(ScriptedCloud(noise()), refuse)).stream(IDS))
    tokens = [event for event in seen if isinstance(event, Token)]
    assert bytes(token.id for token in tokens[:-1]) == b"blue"
    assert [token.reason for token in tokens[:3]] == ["unavailable"] * 3
    consults = [event for event in seen if isinstance(event, Consult)]
    assert [(event.outcome, event.sent_ids) for event in consults] == [("unavailable", 0)] * 3


def test_only_new_ids_travel_and_a_consult_that_failed_reports_them() -> None:
    cloud = cloud_saying("blue", fault={0: CloudUnavailable("gone.")}.get)
    consults = [event for event in asking(cloud).stream(IDS) if isinstance(event, Consult)]
    assert [event.sent_ids for event in consults] == [len(IDS), 1, 1, 1, 1]
    assert all(event.sent_bytes == event.sent_ids * ID_BYTES for event in consults)


@pytest.mark.parametrize(
    ("counts", "total"),
    [((3, None), None), ((3, 0), 3), ((None, 4), None), ((None, None), None), ((), 0)],
)
def test_a_meter_that_is_missing_once_leaves_no_sum(
    counts: tuple[int | None, ...], total: int | None
) -> None:
    """Nothing is known to be nothing only where nothing was asked."""

    def metered(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        count, future = counts[len(ids) - len(IDS)], Flying()
        completion: Completion = send().result()
        future.set_result(replace(completion, cached=count, computed=count))
        return future

    policy = Policy() if counts else Policy(cloud_share=0.0)
    decoder = asking(WrappedCloud(cloud_saying("blue"), metered), policy)
    usage = decoder.generate(IDS, max_tokens=2).usage
    assert (usage.cloud_prompt_cached, usage.cloud_prompt_computed) == (total, total)


class Scored:
    needs, top = Constant(0).needs, 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def score(self, step: object) -> Any:
        return self.value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -0.001, 1.001, np.float32(2), "0.4", None, [0.5], np.zeros(1)],
)
def test_a_score_that_is_not_one_names_the_router(value: Any) -> None:
    edge, router = ScriptedEdge(noise()), Scored(value)
    with pytest.raises(UsageError, match="'Scored'"):
        Decoder(edge, router=router, policy=Policy()).generate(IDS)
    with pytest.raises(UsageError, match="'Scored'"):
        own_scores(edge, router)
    assert edge.sessions == 0
    # One of numpy is a number in the events.
    router.value = np.float64(0.25)
    answer = Decoder(edge, router=router, policy=Policy()).generate(IDS, max_tokens=2)
    assert b'"score":0.25' in msgspec.json.encode(answer.tokens)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_probe_that_cannot_be_sent_makes_way_for_the_next(error: BaseException) -> None:
    now, raised = [0.0], [error]

    def raising(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        if raised:
            raise raised[0]
        return send()

    breaker = Breaker(clock=lambda: now[0])
    decoder = asking(WrappedCloud(cloud_saying("blue"), raising), breaker=breaker)
    for _ in range(3):
        breaker.failed()
    now[0] = 10.0
    with pytest.raises(type(error)):
        decoder.generate(IDS)
    now[0], raised[:] = 100.0, []
    decoder.generate(IDS)
    assert not breaker.is_open


@pytest.mark.parametrize(("cap", "span"), [(1, 1), (8, 8), (5, 2)])
def test_a_probe_counts_against_the_cap(cap: int, span: int) -> None:
    breaker, cloud = Breaker(), HeldCloud(replying("blue sky " * 4, prompt=PROMPT))
    breaker.failed(silent=True)
    policy = Policy(threshold=0.3, max_cloud_tokens=cap, span=span, deadline=60)
    with asking(cloud, policy, text="blue " * 8, breaker=breaker).stream(IDS) as events:
        for event in events:
            if isinstance(event, Token) and event.index == 1:
                cloud.released.set()
                cloud.flying[0].set_result(Completion(ids=(98,), logprobs=(None,), stopped=False))
    assert not breaker.is_open
    assert 0 < sum(n for _, n in cloud.scripted.asks) <= cap


def test_an_answer_that_ends_before_its_probe_says_nothing_of_the_link() -> None:
    now, free, script = [0.0], threading.Event(), replying("blue", prompt=PROMPT)

    def held(ids: Sequence[int]) -> Floats:
        free.wait(60)
        return script(ids)

    breaker = Breaker(clock=lambda: now[0])
    for _ in range(FAILURES):
        breaker.failed()
    now[0] = FIRST_PAUSE
    with closing(LocalCloud(ScriptedEdge(held))) as cloud:
        policy = Policy(threshold=0.3, deadline=60.0, span=2)
        answer = asking(cloud, policy, breaker=breaker).generate(IDS, max_tokens=2)
        assert {token.reason for token in answer.tokens} == {"circuit_open"}
        free.set()
    assert breaker.allow() == "probe"


def test_only_the_probe_makes_way_for_the_next_one() -> None:
    breaker = Breaker(clock=lambda: 0.0)

    def interrupted(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        breaker.failed(silent=True)
        assert breaker.allow() == "probe"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asking(WrappedCloud(cloud_saying("blue"), interrupted), breaker=breaker).generate(IDS)
    # Another answer's probe flies since then.
    assert not breaker.allow()


def test_a_link_that_is_made_in_vain_until_the_deadline_is_silent_once() -> None:
    """As one that says nothing at all is."""
    gone = cloud_saying("blue", fault=lambda _: CloudUnavailable("refused"), delay=0.2)
    answer = asking(gone, Policy(threshold=0.0, deadline=0.3), text="blue " * 8).generate(IDS)
    assert [token.reason for token in answer.tokens].count("unavailable") == 1


@contextmanager
def counting(fault: TextMisdeed | None = None) -> Generator[tuple[Decoder, ScriptedText]]:
    """A cloud that takes text is asked for each word; after its probes it does so with `fault`."""
    small = ScriptedEdge(replying("one two three four five", prompt=PROMPT))
    with (
        closing(ScriptedText("deepseek")) as served,
        closing(connect(served.url, small.tokenizer, engine="deepseek")) as cloud,
    ):
        served.fault = lambda number: fault
        breaker = Breaker(clock=lambda: 0.0)
        router = Constant(1.0)
        yield Decoder(small, router=router, policy=ASKING, cloud=cloud, breaker=breaker), served


SAID = Prompt(tuple(IDS), (Message("user", "Count in words."),))
LONG = Edited(lambda _: b"This model's context is 8192 tokens.", status=400)


@pytest.mark.parametrize(
    ("fault", "sampling"), [(LONG, Sampling()), (None, Sampling(temperature=0.5, top_k=4))]
)
def test_what_a_cloud_of_text_declines_to_one_user_pauses_it_for_no_other(
    fault: TextMisdeed | None, sampling: Sampling
) -> None:
    """Seen: after three such answers the cloud was asked for nobody's.

    And seen: each further word waited for a refusal, where it declined everybody's.
    """
    with counting(fault) as (decoder, served):
        breaker = decoder.tiers[0].breaker
        for _ in range(FAILURES):
            answer = decoder.generate(SAID, sampling=sampling)
            assert answer.text == "one two three four five"
            assert (answer.usage.cloud_calls, answer.usage.failed_calls) == (1, 1)
            assert answer.tokens[0].reason == "rejected"
            assert {one.reason for one in answer.tokens[1:]} == {"circuit_open", "mid_word"}
        assert not breaker.is_open
        # A probe that is declined so makes way for the next.
        breaker.failed(silent=True)
        decoder.generate(SAID, sampling=sampling)
        until(lambda: breaker.allow() == "probe")
        breaker.succeeded()
        served.fault = lambda number: None
        assert decoder.generate(SAID).usage.cloud_tokens


@pytest.mark.parametrize(
    ("status", "said"), [(402, b""), (404, b""), (400, b"The model does not exist")]
)
def test_a_cloud_of_text_that_declines_everybody_is_paused(status: int, said: bytes) -> None:
    with counting(Edited(lambda _: said, status=status)) as (decoder, _):
        for _ in range(FAILURES):
            decoder.generate(SAID)
        assert decoder.tiers[0].breaker.is_open


def test_corrections_are_counted_against_what_would_have_been_written() -> None:
    """Two tokens are as likely; at temperature 1 the draw decides which is the edge's."""
    logits = np.full(SIZE, -1e9, np.float32)
    logits[[65, 66]] = 0.0, 0.1
    always = np.where(np.arange(SIZE) == 65, 9.0, 0.0).astype(np.float32)
    edge, cloud = ScriptedEdge(lambda ids: logits), ScriptedCloud(lambda ids: always)
    drawn, answer = (
        Decoder(edge, router=Constant(score), policy=Policy(), cloud=cloud).generate(
            IDS, max_tokens=40, sampling=Sampling(temperature=1.0, seed=5)
        )
        for score in (0.0, 1.0)
    )
    truth = sum(token.id != 65 for token in drawn.tokens)
    assert 5 < truth < 35
    assert (answer.usage.cloud_tokens, answer.usage.correction_tokens) == (40, truth)
    assert [token.draft for token in answer.tokens] == [token.id for token in drawn.tokens]


FAULTS = [CloudUnavailable, CloudTimeout, CloudRefused, CloudRejected, CloudProtocolError]


def test_the_cloud_writes_the_critical_token_and_no_other() -> None:
    result = asking(cloud_saying("gray."), text="grey.", unsure=(2,)).generate(IDS)
    assert result.text == "gray."
    assert [t.source for t in result.tokens].count("cloud") == 1
    assert result.tokens[2].reason == "critical"
    assert result.tokens[2].edge
    assert result.tokens[-1].id == EOS
    assert result.finish_reason == "stop"
    assert result.usage.correction_tokens == 1
    assert result.usage.cloud_share == 1 / 6


def test_a_stop_string_inside_a_span_wastes_the_rest() -> None:
    result = asking(cloud_saying("ab\ncdefgh"), Policy(span=8)).generate(IDS, stop=["\n"])
    assert result.text == "ab"
    assert result.usage.wasted_tokens == 5
    assert result.finish_reason == "stop"


def test_max_tokens_and_context_end_an_answer() -> None:
    edge = ScriptedEdge(replying("abcdefgh", prompt=PROMPT), context=len(IDS) + 3)
    decoder = Decoder(edge, router=Constant(1.0), policy=Policy())
    assert decoder.generate(IDS, max_tokens=2).text == "ab"
    full = decoder.generate(IDS)
    assert full.finish_reason == "length"
    assert full.text == "abcd"


def test_text_held_for_a_stop_string_or_a_character_is_released_at_the_end() -> None:
    decoder = asking(None, text="a\né")
    result = decoder.generate(IDS, stop=["\n\n"])
    assert result.text == "a\né"
    assert {t.reason for t in result.tokens} == {"no_cloud"}
    assert decoder.generate(IDS, max_tokens=3).text == "a\n\ufffd"
    assert decoder.generate(IDS, max_tokens=2, stop=["\n\n"]).text == "a\n"


def test_nothing_is_computed_twice() -> None:
    decoder = asking(cloud_saying("blue sky"), text="blue sky", unsure=(1, 4))
    result = decoder.generate(IDS)
    assert decoder.edge.computed == len(IDS) + len(result.tokens) - 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_token_leaves_the_edge_s_token(fault: type[CloudError]) -> None:
    text = "blue sky"
    for at in range(len(text) + 1):
        cloud = cloud_saying(text, fault=lambda ask, at=at: fault("x") if ask == at else None)
        result = asking(cloud, text="BLUE SKY").generate(IDS)
        assert len(result.tokens) == len(text) + 1
        assert result.tokens[at].source == "edge"
        assert result.tokens[at].reason == fault.reason
        assert sum(t.source == "edge" for t in result.tokens) == 1
        assert result.usage.failed_calls == 1


def test_on_cloud_error_raise_stops_and_frees_the_session() -> None:
    cloud = cloud_saying("blue", fault=lambda ask: CloudUnavailable("gone"))
    decoder = asking(cloud, Policy(on_cloud_error="raise"))
    # A pause after failures would let the next answers go on without it, unnoticed.
    for _ in range(6):
        with pytest.raises(CloudUnavailable):
            decoder.generate(IDS)
    assert decoder.edge.sessions == 0  # type: ignore[attr-defined]
    assert decoder.tiers[0].breaker.is_open


def test_the_breaker_pauses_consults_and_a_probe_finds_the_way_back() -> None:
    now, failing, reasons = [0.0], [True], list[str]()
    gone = CloudUnavailable("gone")
    cloud = cloud_saying("b" * 20, fault=lambda ask: gone if failing[0] else None)
    decoder = asking(cloud, text="e" * 20, breaker=Breaker(clock=lambda: now[0]))
    for event in decoder.stream(IDS, max_tokens=12):
        if isinstance(event, Token):
            reasons.append(event.reason)
            if event.index == 5:
                now[0], failing[0] = 100.0, False
    assert reasons == ["unavailable"] * 3 + ["circuit_open"] * 3 + ["critical"] * 6


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, UsageError),
        (IDS, {"max_tokens": 0}, UsageError),
        (IDS, {"stop": [""]}, UsageError),
        (IDS * 600, {}, ContextOverflow),
    ],
)
def test_bad_input_is_refused_and_frees_the_session(
    prompt: list[int], options: dict[str, Any], error: type[Exception]
) -> None:
    decoder = asking(None)
    with pytest.raises(error):
        decoder.stream(prompt, **options)
    assert decoder.edge.sessions == 0  # type: ignore[attr-defined]


CIRCLE = "So it is said, and "


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (f"Well:\n{CIRCLE * 60}", len(f"Well:\n{CIRCLE}") + ENDLESS),
        ("0" * 600, 1 + ENDLESS),
        (CIRCLE * 12, None),  # so much may be meant
        ("".join(f"{n} is a number, " for n in range(60)), None),
    ],
)
@pytest.mark.parametrize("who", ["edge", "cloud", "drafted"])
def test_an_answer_that_goes_round_in_circles_is_cut(
    text: str, written: int | None, who: str
) -> None:
    """Whoever writes it, and wherever it goes: in a pipe and behind a server, too."""
    policy = Policy(threshold=0.5, span=16, speculate=8 * (who == "drafted"))
    cloud = cloud_saying(text) if who != "edge" else None
    answer = asking(cloud, policy, text=text).generate(IDS)
    assert answer.usage.repeats == (written is not None)
    assert answer.finish_reason == ("length" if written else "stop")
    assert len(answer.tokens) == (written or len(text) + 1)
    assert text.startswith(answer.text)


def test_a_circle_of_the_prompt_is_none_of_the_answer() -> None:
    prompt = CIRCLE * 40
    decoder = Decoder(
        ScriptedEdge(replying(CIRCLE, prompt=prompt)), router=Constant(0.0), policy=Policy()
    )
    assert decoder.generate(list(prompt.encode())).finish_reason == "stop"


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_any_split_of_bytes_decodes_as_the_whole(data: bytes, cuts: list[int]) -> None:
    state, texts, so_far = HeldText(), [], getincrementaldecoder("utf-8")("replace")
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    for start, end in pairwise(edges):
        text, state, _ = state.feed(data[start:end], ())
        texts.append(text)
        assert text == so_far.decode(data[start:end])
    assert "".join(texts) + state.release(())[0] == data.decode("utf-8", "replace")


def _cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first."""
    for end in range(len(text) + 1):
        found = [at for stop in stops if (at := text.find(stop, 0, end)) >= 0]
        if found:
            return text[: min(found)], True
    return text, False


@given(st.text("ab", max_size=48), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stops_match_across_pieces(text: str, stops: list[str]) -> None:
    state, shown, matched = HeldText(), "", None
    for character in text:
        piece, state, matched = state.feed(character.encode(), stops)
        shown += piece
        if matched:
            break
    expected, hit = _cut(text, stops)
    assert bool(matched) == hit
    assert not matched or matched in stops
    assert shown + state.text == expected


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_no_stop_string_is_ever_shown(text: str, stops: list[str]) -> None:
    shown, state, matched = HeldText().feed(text.encode(), stops)
    assert not any(stop in shown for stop in stops)
    assert matched or shown + state.text == text
