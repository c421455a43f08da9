"""What `Usage` counts is what the events say and the clouds were asked; each draft is told once."""

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.errors import BreaksGrammar, CloudTimeout, CloudUnavailable, NothingUsable
from edgewise.events import Consult, Event, Finished, Pending, RolledBack, Token, Usage
from edgewise.loop.decoder import Decoder
from edgewise.loop.one_cloud import Tier
from edgewise.loop.policy import Budget, Policy
from edgewise.routers.untrained import Random
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.chat_reader import Asked, Verdict
from tests.doubles.wrapped_cloud import Late
from tests.loop.test_read_along import SAID, reading, whole
from tests.loop.test_speculate import IDS, LINKED, agreeing, ending, other_vocabulary, speaking
from tests.loop.test_verify import grammar

BACK = "answered", NothingUsable.reason, BreaksGrammar.reason
FAULTS = CloudTimeout, CloudUnavailable, NothingUsable


CACHED, COMPUTED = 3, 5


class Counted:
    """What a cloud was asked. Of what comes back it metered `CACHED` and `COMPUTED`."""

    def __init__(self, cloud: CloudModel, patience: Sequence[int], *, failing: int) -> None:
        self.asked: list[int] = []
        self.patience, self.failing = patience, failing
        self.cloud = WrappedCloud(cloud, self.consult)

    def consult(self, ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        number, made, real = len(self.asked), Flying(), send()
        self.asked.append(n)
        error = real.exception()
        if self.failing and number % self.failing == 1:
            error = FAULTS[number // self.failing % 3]("no.")
        if isinstance(error, NothingUsable):
            error.meter = Completion(ids=(), logprobs=(), cached=CACHED, computed=COMPUTED)
        if error is not None:
            made.set_exception(error)
        else:
            made.set_result(replace(real.result(), cached=CACHED, computed=COMPUTED))
        return Late(made, self.patience[number % len(self.patience)])


def told(events: Sequence[Event]) -> tuple[list[Token], list[Consult], Usage]:
    finished = events[-1]
    assert isinstance(finished, Finished)
    return (
        [one for one in events if isinstance(one, Token)],
        [one for one in events if isinstance(one, Consult)],
        finished.usage,
    )


def corrections(tokens: Sequence[Token]) -> int:
    """Where the edge had another token, and all of a sentence that the cloud wrote anew."""
    count, anew = 0, False
    for one in tokens:
        anew = one.reason == "corrected" or (anew and one.reason == "span")
        count += anew or one.draft not in (None, one.id)
    return count


def require_told_once(events: Sequence[Event]) -> None:
    """Each draft at its own place, then it is rolled back or written."""
    told: dict[int, int] = {}
    for event in events:
        if isinstance(event, Pending):
            assert event.index not in told
            told[event.index] = event.id
        elif isinstance(event, RolledBack):
            assert (event.tokens, event.index <= min(told)) == (len(told), True)
            told.clear()
        elif isinstance(event, Token) and event.reason != "corrected":
            if told.get(event.index) == event.id:
                del told[event.index]
            assert event.reason != "verified" or event.index not in told
    assert not told


def require_law(events: Sequence[Event], *, metered: bool = True) -> None:
    """What tokens and consults say by themselves."""
    require_told_once(events)
    tokens, consults, usage = told(events)
    wrote = [one.source for one in tokens]
    assert (usage.edge_tokens, usage.cloud_tokens) == (wrote.count("edge"), wrote.count("cloud"))
    assert usage.correction_tokens == corrections(tokens)
    assert usage.verified_tokens == sum(one.reason == "verified" for one in tokens)
    ratios = [
        (one.ratio, one.index)
        for one in tokens
        if one.ratio is not None and one.reason == "verified"
    ]
    assert (usage.lowest_ratio, usage.lowest_at) == min(ratios, default=(None, None))
    assert all(one.score is None for one in tokens if one.reason == "span")
    failed = [one for one in consults if one.outcome != "answered"]
    assert usage.failed_calls == len(failed)
    assert usage.cloud_calls >= len(consults)
    back = sum(one.outcome in BACK for one in consults)
    if metered:
        counted = usage.cloud_prompt_cached, usage.cloud_prompt_computed
        assert counted == (back * CACHED, back * COMPUTED)
    share = (usage.cloud_tokens + usage.wasted_tokens) / len(tokens)
    assert usage.cloud_share == min(1, share)
    assert sum(one.wrote for one in usage.tiers) in (0, usage.cloud_tokens)


DRAWN: dict[str, st.SearchStrategy[Any]] = {
    **LINKED,
    "failing": st.sampled_from([0, 2, 3]),
    "stop": st.sampled_from([(), ("a",), ("e", "qu")]),
    "cap": st.sampled_from([None, None, 5]),
    "share": st.sampled_from([None, 0.2]),
    "max_tokens": st.sampled_from([1, 3, 30]),
}


@pytest.mark.parametrize("way", ["tokens", "words", "verify", "several"])
@given(span=st.integers(1, 4), speculate=st.sampled_from([0, 8]), **DRAWN)
def test_usage_is_what_the_events_say(
    way: str, seed: int, agreement: float, ends: int, stop: tuple[str, ...], **drawn: Any
) -> None:
    small, large = noise(seed), noise(seed + 1000)
    if way == "words":
        small, large = speaking(small), speaking(large)
    edge = ending(small, ends)
    script = agreeing(edge, ending(large, ends), agreement)
    link = {"patience": drawn["patience"], "failing": drawn["failing"]}
    near = ScriptedCloud(script, candidates=2, verifies=way == "verify")
    clouds = [Counted(other_vocabulary(script) if way == "words" else near, **link)]
    if way == "several":
        far = [ScriptedCloud(noise(seed + one), candidates=2) for one in range(2)]
        clouds += [Counted(cloud, **link) for cloud in far]
    policy = Policy(
        cloud_share=drawn["share"],
        max_cloud_tokens=drawn["cap"],
        span=drawn["span"],
        speculate=drawn["speculate"],
        verify="on" if way == "verify" else "off",
        deadline=60,
    )
    tiers = [Tier(one.cloud, share=0.5) for one in clouds[1:]]
    decoder = Decoder(
        ScriptedEdge(edge),
        router=Random(seed),
        policy=policy,
        cloud=clouds[0].cloud,
        tiers=tiers,
    )
    with decoder.stream(IDS, max_tokens=drawn["max_tokens"], stop=stop, pending=True) as stream:
        events = [*stream]
    require_law(events)
    tokens, consults, usage = told(events)
    if (share := drawn["share"]) is not None:
        charged = Budget().bucket + share * len(tokens) - stream.budget.bucket
        assert usage.cloud_tokens + usage.wasted_tokens == pytest.approx(charged)
    assert usage.cloud_calls == sum(len(one.asked) for one in clouds)
    # What was asked of consults that were dropped, returned, or not in time is used or wasted.
    late = sum(one.requested for one in consults if one.outcome == "timeout")
    asked = sum(sum(one.asked) for one in clouds) - sum(one.requested for one in consults)
    brought = sum(one.answered for one in consults) + late + asked
    if way == "verify":
        assert {(one.requested, one.answered) for one in consults} <= {(0, 0)}
        brought = sum(one.reason == "corrected" for one in tokens)
    assert usage.cloud_tokens + usage.wasted_tokens == brought
    if way in ("tokens", "several"):
        assert usage.cloud_completion_tokens == sum(one.answered for one in consults)


@given(
    stand=st.integers(0, 2),
    says=st.sampled_from(["No.", "Two and two are four, so it is well known."]),
    max_tokens=st.sampled_from([10, 50, 120]),
    share=st.sampled_from([None, 0.2]),
    escalate=st.sampled_from([0.0, 1.0]),
    failing=st.booleans(),
)
def test_usage_of_passages_is_what_the_events_say(
    stand: int, says: str, max_tokens: int, share: float | None, escalate: float, failing: bool
) -> None:
    def judge(asked: Asked) -> Verdict:
        return min(stand, len(asked.sentences) - 1), says

    def fault(number: int) -> int | None:
        return 500 if failing and number == 1 else None

    with reading(judge, policy={"cloud_share": share}, fault=fault) as (pair, _):
        events = [*whole(pair, escalate).stream(SAID, max_tokens=max_tokens, pending=True)]
    require_law(events, metered=False)
    _, consults, usage = told(events)
    assert usage.escalated is (escalate == 1)
    # A passage without a sentence is not sent.
    answered = sum(one.outcome == "answered" and one.sent_bytes > 0 for one in consults)
    assert usage.cloud_completion_tokens == 12 * answered
    assert usage.cloud_prompt_cached is not None


def test_what_the_grammar_refuses_is_wasted_and_was_metered() -> None:
    clouds = Counted(ScriptedCloud(noise(7)), [0], failing=0)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    decoder = Decoder(
        ScriptedEdge(noise(3)), router=Random(1), policy=Policy(threshold=0.2), cloud=clouds.cloud
    )
    events = [*decoder.stream(IDS, max_tokens=30, grammar=grammar(schema))]
    require_law(events)
    _, consults, usage = told(events)
    assert usage.failed_calls == sum(one.outcome == BreaksGrammar.reason for one in consults) > 0
    assert usage.cloud_tokens + usage.wasted_tokens == len(consults)
