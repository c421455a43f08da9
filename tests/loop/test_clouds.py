"""Several clouds: which is asked, what each may spend and see, and what happens when one fails."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.cloud.adapter.ids import Adapter
from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    UsageError,
)
from edgewise.events import Consult
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.one_cloud import TIER_CREDIT, Tier
from edgewise.loop.policy import Budget, Policy
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Constant, Random
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, Script, ScriptedEdge, noise, replying
from tests.cloud.recording import ids_of, recording
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.wrapped_cloud import late
from tests.loop.test_consults import PROMPT
from tests.server.in_process import CHAT, app

IDS = tuple(PROMPT.encode())
EVERYTHING = Policy(threshold=0.0)
GRAY = replying("gray", prompt=PROMPT)


def saying(text: str, *, unsure: Sequence[int] = (), **options: Any) -> ScriptedCloud:
    """Knows its candidates; at the offsets in `unsure` two of them are as likely."""
    script = replying(text, prompt=PROMPT, unsure=unsure)
    return ScriptedCloud(script, candidates=2, **options)


def decoder(
    *clouds: CloudModel,
    policy: Policy = EVERYTHING,
    script: Script = GRAY,
    seed: int | None = None,
    **tier: Any,
) -> Decoder:
    near, *further = clouds
    tiers = [Tier(cloud, **{"share": 1.0, **tier}) for cloud in further]
    router = Constant(1.0) if seed is None else Random(seed)
    edge = ScriptedEdge(script)
    return Decoder(edge, router=router, policy=policy, cloud=near, tiers=tiers)


def counts(answer: Answer) -> list[tuple[int, int, int, int]]:
    return [(one.wanted, one.calls, one.failed, one.wrote) for one in answer.usage.tiers]


def asked(cloud: ScriptedCloud) -> list[int]:
    """The places in the answer that it was asked for."""
    return [len(ids) - len(IDS) for ids, _ in cloud.asks]


def test_the_next_is_asked_where_the_nearest_is_unsure_or_was_wrong() -> None:
    near, far = saying("blud", unsure=[1, 3]), saying("blue")
    answer = decoder(near, far).generate(IDS)
    assert answer.text == "blue"
    assert asked(near) == [0, 1, 2, 3, 4]
    # Confirmed at 1; overruled at 3, so that the next place is looked at, too.
    assert asked(far) == [1, 3, 4]
    assert counts(answer) == [(5, 5, 0, 4), (3, 3, 0, 1)]
    assert answer.usage.cloud_tokens == 5
    assert answer.usage.cloud_calls == 8
    # Once words that agree, once those that were overruled, once the end.
    assert answer.usage.wasted_tokens == 3


def test_a_third_is_asked_where_the_second_is_unsure() -> None:
    near, mid, far = saying("b", unsure=[0]), saying("c", unsure=[0]), saying("d")
    answer = decoder(near, mid, far).generate(IDS, max_tokens=1)
    assert answer.text == "d"
    assert [asked(one) for one in (near, mid, far)] == [[0]] * 3
    assert [one.wrote for one in answer.usage.tiers] == [0, 0, 1]


def test_words_without_logprobs_are_compared_and_trusted_once_they_are_right() -> None:
    far = ScriptedCloud(replying("blue", prompt=PROMPT))
    near = ScriptedCloud(replying("blue", prompt=PROMPT))
    decoder(near, far).generate(IDS)
    assert asked(far) == [0]


def test_a_span_of_words_that_are_right_so_far_stands() -> None:
    near, far = saying("blue sea", unsure=[0]), saying("blue sea")
    answer = decoder(near, far, policy=Policy(threshold=0.0, span=4)).generate(IDS, max_tokens=4)
    assert answer.text == "blue"
    assert [one.wrote for one in answer.usage.tiers] == [4, 0]


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_threshold_of_its_own(threshold: float) -> None:
    near, far = saying("blue", unsure=[2]), saying("blue")
    decoder(near, far, threshold=threshold).generate(IDS)
    assert len(asked(far)) == (5 if threshold == 0 else 0)


FAULTS: list[Callable[[], CloudError]] = [
    lambda: CloudUnavailable("gone"),
    lambda: CloudTimeout("slow"),
    lambda: CloudProtocolError("lies"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_nearest_fails_the_next_writes(fault: Callable[[], CloudError]) -> None:
    near, far = saying("b", fault=lambda _: fault()), saying("blue")
    loop = decoder(near, far)
    with loop.stream(IDS) as events:
        told = list(events)
    answer = collect(iter(told))
    assert answer.text == "blue"
    assert [tier.breaker.is_open for tier in loop.tiers] == [True, False]
    assert len(near.asks) < 5
    assert [one.wrote for one in answer.usage.tiers] == [0, 5]
    assert answer.usage.failed_calls == len(near.asks)
    outcomes = [one.outcome for one in told if isinstance(one, Consult)]
    assert outcomes == [fault().reason, "answered"] * len(near.asks) + ["answered"] * (
        5 - len(near.asks)
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_next_fails_the_words_of_the_nearest_stand(
    fault: Callable[[], CloudError],
) -> None:
    near, far = saying("blue", unsure=range(5)), saying("x", fault=lambda _: fault())
    answer = decoder(near, far).generate(IDS)
    assert answer.text == "blue"
    assert answer.usage.tiers[0].wrote == 5
    assert answer.usage.tiers[1].failed == len(far.asks) < 5


def test_where_all_fail_the_edge_writes_or_the_answer_ends() -> None:
    clouds = [saying("b", fault=lambda _: CloudUnavailable("gone")) for _ in range(3)]
    answer = decoder(*clouds).generate(IDS)
    assert answer.text == "gray"
    assert answer.usage.alone
    with pytest.raises(CloudUnavailable):
        decoder(*clouds, policy=Policy(threshold=0.0, on_cloud_error="raise")).generate(IDS)
    near, far = saying("b", fault=lambda _: CloudUnavailable("gone")), saying("blue")
    raising = decoder(near, far, policy=Policy(threshold=0.0, on_cloud_error="raise"))
    assert raising.generate(IDS).text == "blue"


def test_without_credit_the_next_is_not_asked_where_the_nearest_fails() -> None:
    near, far = saying("b", fault=lambda _: CloudUnavailable("gone")), saying("x" * 40)
    answer = decoder(near, far, share=0.0, script=noise()).generate(IDS, max_tokens=40)
    assert len(far.asks) == TIER_CREDIT / 2
    assert answer.usage.tiers[1].wanted == 40
    assert answer.usage.cloud_tokens == TIER_CREDIT / 2


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_cap_is_a_promise_about_all_of_them(cap: int) -> None:
    clouds = [saying("blue sky", unsure=range(9)) for _ in range(3)]
    answer = decoder(*clouds, policy=Policy(threshold=0.0, max_cloud_tokens=cap)).generate(IDS)
    assert sum(n for cloud in clouds for _, n in cloud.asks) == cap
    assert answer.usage.cloud_calls == cap


def mixed(seed: int) -> Callable[[int], CloudError | None]:
    """A link on which some consults fail, each in its way."""
    return lambda ask: FAULTS[(ask + seed) % 3]() if (ask * 7 + seed) % 5 == 0 else None


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    st.tuples(st.sampled_from([0.01, 0.1, 0.3]), st.sampled_from([0.0, 0.02, 0.2])),
    st.integers(0, 99),
    st.integers(1, 3),
    st.booleans(),
)
def test_three_tiers_hold_their_budgets(
    lengths: list[int],
    share: float,
    shares: tuple[float, float],
    seed: int,
    span: int,
    faults: bool,
) -> None:
    fault = mixed(seed) if faults else lambda _: None
    near, mid, far = (
        ScriptedCloud(noise(seed + one, scale=0.5), candidates=2, fault=fault) for one in range(3)
    )
    policy = Policy(cloud_share=share, span=span, speculate=4)
    loop = Decoder(
        ScriptedEdge(noise(seed + 9)),
        router=Random(seed),
        policy=policy,
        cloud=near,
        tiers=[Tier(mid, share=shares[0], threshold=0.3), Tier(far, share=shares[1])],
    )
    output, calls, budget = 0, 0, None
    for length in lengths:
        with loop.stream(IDS, max_tokens=length, budget=budget) as events:
            usage = collect(events).usage
            budget = events.budget
        output, calls = output + usage.edge_tokens + usage.cloud_tokens, calls + usage.cloud_calls
        assert sum(one.wrote for one in usage.tiers) == usage.cloud_tokens
        assert all(one.failed <= one.calls <= one.wanted for one in usage.tiers)
    assert calls == sum(len(cloud.asks) for cloud in (near, mid, far))
    for cloud, most in zip((mid, far), shares, strict=True):
        # What failed before its deadline is free, but it was asked for.
        answered = sum(
            n
            for at, (_, n) in enumerate(cloud.asks)
            if not (error := fault(at)) or isinstance(error, CloudTimeout)
        )
        assert answered <= TIER_CREDIT + most * output + 1e-6


@given(st.integers(0, 99), st.sampled_from([0.1, 0.4]), st.integers(1, 3))
def test_speculation_changes_no_answer(seed: int, share: float, span: int) -> None:
    told: list[Any] = []
    for speculate in (0, 8):
        clouds = [
            late(ScriptedCloud(noise(seed + one, scale=0.7), candidates=2), [seed % 4, 3, one])
            if speculate
            else ScriptedCloud(noise(seed + one, scale=0.7), candidates=2)
            for one in range(3)
        ]
        policy = Policy(cloud_share=share, span=span, speculate=speculate)
        loop = decoder(*clouds, policy=policy, seed=seed, script=noise(seed), share=0.2)
        answer = loop.generate(IDS, max_tokens=24)
        tokens = [(one.id, one.source, one.reason) for one in answer.tokens]
        told.append((tokens, [one.wrote for one in answer.usage.tiers]))
    assert told[0] == told[1]


LOCAL = [
    Prompt(IDS, local=True),
    Prompt(IDS, (Message("user", "sky?", local=True),)),
    Prompt(IDS, (Message("system", "x", local=True), Message("user", "sky?"))),
]


POLICIES = [
    Policy(threshold=0.0, speculate=4),
    Policy(cloud_share=0.5),
    Policy().cloud_alone(),
    Policy(threshold=0.0, on_cloud_error="raise"),
]


@pytest.mark.parametrize("prompt", LOCAL)
@pytest.mark.parametrize(("count", "trusted"), [(1, None), (2, None), (2, 0), (2, 1)])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_local_reaches_a_trusted_cloud_alone(
    prompt: Prompt, count: int, trusted: int | None, policy: Policy
) -> None:
    clouds = [saying("blue", unsure=range(5)) for _ in range(count)]
    tiers = [
        Tier(one, share=1.0 if at else None, trusted=at == trusted) for at, one in enumerate(clouds)
    ]
    loop = Decoder(ScriptedEdge(noise()), router=Constant(1.0), policy=policy, tiers=tiers)
    with loop.stream(prompt, max_tokens=8, budget=Budget(bucket=7.0)) as events:
        assert list(events)
        left = events.budget
    for at, cloud in enumerate(clouds):
        assert bool(cloud.opened) == bool(cloud.asks) == (at == trusted)
        assert not cloud.prefetched or at == trusted
    if trusted is None:
        # It neither spends nor earns.
        assert left.bucket == 7.0
    loop.generate(IDS, max_tokens=8)
    assert clouds[0].opened


def test_a_pair_takes_what_messages_say_of_themselves() -> None:
    cloud = ScriptedCloud(noise(1))
    with Pair(ScriptedEdge(noise()), cloud=cloud, router=Constant(1.0), threshold=0.5) as pair:
        said: list[Any] = [
            {"role": "user", "content": "a", "local": True},
            Message("assistant", "b"),
            Message("user", "c"),
        ]
        pair.ask(said, max_tokens=4)
        assert cloud.opened == 0
        pair.ask(said[1:], max_tokens=4)
        assert cloud.opened == 1
        with pytest.raises(UsageError, match=r"\$\.local"):
            pair.ask([{"role": "user", "content": "a", "local": "yes"}])


SECRET = "My number is anna@b.example, remember"


@pytest.mark.parametrize("redact", [None, "email", "email=local"])
def test_no_byte_of_what_is_private_reaches_a_cloud_that_is_not_trusted(redact: str | None) -> None:
    with (
        closing(ScriptedEngine()) as one,
        closing(ScriptedEngine()) as other,
        recording(one.url) as home,
        recording(other.url) as hosted,
        Pair(
            ScriptedEdge(noise()),
            cloud=[home.url, hosted.url],
            router=Constant(1.0),
            threshold=0.0,
            tier_threshold=0.0,
            tier_share=1.0,
            trust=home.url.removeprefix("http://"),
            redact=redact,
        ) as pair,
    ):
        home.forget()
        hosted.forget()
        local = redact is None
        ids = pair.edge.tokenizer.encode(SECRET)
        prompt = Prompt(tuple(ids), (Message("user", SECRET, local=local),))
        answer = pair.ask(prompt, max_tokens=12)
        assert home.size > len(SECRET)
        assert answer.usage.tiers[0].wrote > 0
        assert {one.host for one in pair.record.answers()} >= {home.url.removeprefix("http://")}
        sent = [bytes(ids_of(message)) + message for message in hosted.messages]
        assert bool(sent) == (redact == "email")
        assert not any(b"anna" in one for one in sent)


def test_each_cloud_gets_its_own_key_and_no_other() -> None:
    with closing(ScriptedEngine()) as one, closing(ScriptedEngine()) as other:
        edge, clouds = ScriptedEdge(noise()), [one.url, other.url]
        one.key, other.key = None, "sk-far"
        with pytest.raises(UsageError, match="cloud-key") as caught:
            Pair(edge, cloud=clouds, cloud_key="sk-far")
        assert "sk-far" not in str(caught.value)
        with Pair(edge, cloud=clouds, cloud_key=",sk-far", trust="127.0.0.1") as pair:
            assert [one.name for one in pair.clouds] == clouds
        other.key = None
        one.key = "sk-far"
        with pytest.raises(CloudRefused):
            Pair(edge, cloud=clouds, cloud_key=",sk-far")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tier_share": "2%,1%"}, "tier-share"),
    ({"tier_share": 1.5}, "tier-share"),
    ({"tier_threshold": "high"}, "tier-threshold"),
    ({"price": "1,0.1,2"}, "price"),
    ({"trust": "http://box"}, "trust"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=str)
def test_what_cannot_be_honoured_is_refused(settings: dict[str, Any], said: str) -> None:
    clouds = [saying("a"), saying("b")]
    with pytest.raises(UsageError, match=said):
        Pair(ScriptedEdge(noise()), cloud=clouds, **settings)
    for cloud in (clouds[0], "none"):
        with pytest.raises(UsageError, match="tier-share"):
            Pair(ScriptedEdge(noise()), cloud=cloud, tier_share=0.1)
        Pair(ScriptedEdge(noise()), cloud=cloud).close()


def test_the_price_is_that_of_the_last_cloud() -> None:
    near, far = saying("blue", unsure=[0]), saying("blue")
    near.name = "box"
    options: dict[str, Any] = {"price": "1,1,1", "trust": "box", "threshold": 0.0, "tier_share": 1}
    with Pair(ScriptedEdge(noise()), cloud=[near, far], router=Constant(1.0), **options) as pair:
        answer = pair.ask(IDS)
    assert answer.usage.cost is not None
    assert (len(near.asks), len(far.asks)) == (5, 1)
    assert answer.usage.cost.output_tokens == 1


@pytest.mark.parametrize("limit", [None, "0.0000001"])
def test_a_cloud_of_ones_own_costs_nothing_and_is_not_held_back(limit: str | None) -> None:
    """Neither where the last one, which has the price, may not see the prompt."""
    near, far = saying("blue"), saying("blue")
    near.name = "box"
    options: dict[str, Any] = {"price": "1,1,1", "trust": "box", "threshold": 0.0}
    edge = ScriptedEdge(noise())
    with Pair(edge, cloud=[near, far], router=Constant(1.0), max_cost=limit, **options) as pair:
        answer = pair.ask(Prompt(IDS, local=True), max_tokens=4)
    assert len(near.asks) == answer.usage.cloud_tokens == 4
    assert answer.usage.cost is not None
    assert answer.usage.cost.paid == 0


@pytest.mark.parametrize("own", [None, ByteTokenizer("<other>")])
def test_a_cloud_in_this_process_is_ones_own(own: ByteTokenizer | None) -> None:
    """In whichever vocabulary."""
    near, far = LocalCloud(ScriptedEdge(noise(2), tokenizer=own)), ScriptedCloud(noise(3))
    with Pair(ScriptedEdge(noise()), cloud=[near, far], router=Constant(1.0)) as pair:
        assert [tier.trusted for tier in pair.decoder.tiers] == [True, False]


def test_a_new_conversation_has_new_budgets_with_every_cloud() -> None:
    clouds = [saying("blue", unsure=range(5)) for _ in range(2)]
    options: dict[str, Any] = {"threshold": 0.0, "tier_share": 0.01, "tier_threshold": 0.0}
    with Pair(ScriptedEdge(noise()), cloud=clouds, router=Constant(1.0), **options) as pair:
        for _ in range(2):
            before = len(clouds[1].asks)
            pair.ask(IDS, max_tokens=5)
            assert len(clouds[1].asks) - before == TIER_CREDIT / 2
            pair.forget()


def test_a_consult_took_as_long_as_its_own_cloud_did() -> None:
    near, far = saying("blue", unsure=[0]), saying("blue", delay=0.3)
    with decoder(near, far).stream(IDS, max_tokens=1) as events:
        first, second = [one.seconds for one in events if isinstance(one, Consult)]
    assert first < 0.3 <= second


def test_how_often_drafts_are_rejected_is_known_of_the_nearest() -> None:
    """It is drafted beyond the nearest's consults, whoever overrules it."""
    pair = decoder(saying("gray", unsure=[0]), saying("blue"))
    before = [tier.latency.rejection_rate for tier in pair.tiers]
    pair.generate(IDS, max_tokens=1)
    after = [tier.latency.rejection_rate for tier in pair.tiers]
    assert (after[0] > before[0], after[1]) == (True, before[1])


def test_behind_a_cloud_that_is_asked_between_words_the_next_is_too() -> None:
    own = ByteTokenizer("<other>")
    near = ScriptedCloud(noise(2), tokenizer=own)
    far = ScriptedCloud(replying("blue sea and sky", prompt=PROMPT))
    edge = ScriptedEdge(replying("gray sea and sky", prompt=PROMPT))
    clouds = [Adapter(near, own=own, edge=edge.tokenizer), far]
    with Pair(edge, cloud=clouds, router=Constant(1.0), threshold=0.0, tier_share=1) as pair:
        answer = pair.ask(IDS, max_tokens=24)
    assert near.asks
    assert far.asks
    begun = {"", "blue", "blue sea", "blue sea and"}
    assert answer.text.startswith("blue")
    texts = [bytes(ids)[len(IDS) :].decode() for ids, _ in far.asks]
    assert all(text in begun for text in texts[:1])


def test_the_edges_text_is_never_called_the_clouds() -> None:
    with app(saying("blue", fault=lambda _: CloudUnavailable("gone"))) as client:
        for model, code in (("edgewise", 200), ("edgewise:cloud", 502)):
            body = {**CHAT, "model": model, "max_tokens": 3}
            assert client.post("/v1/chat/completions", json=body).status_code == code


def test_a_server_tells_what_each_cloud_did_and_sends_local_words_to_trusted_ones() -> None:
    near, far = (ScriptedCloud(noise(one)) for one in (1, 2))
    near.name, far.name = "http://box:1", "http://far:2"
    with app([near, far], trust="box:1", tier_share=1, tier_threshold=0.0, threshold=0.0) as client:
        body = {**CHAT, "max_tokens": 3}
        other = [{"role": "user", "content": "sea: "}]
        local = client.post("/v1/chat/completions", json={**body, "edgewise": {"cloud": "none"}})
        assert local.status_code == 200
        assert near.asks
        assert far.opened == 0
        reply = client.post("/v1/chat/completions", json={**body, "messages": other})
        tiers = reply.json()["usage"]["edgewise"]["tiers"]
        metrics = client.get("/metrics").text
    assert [one["cloud"] for one in tiers] == ["box:1", "far:2"]
    assert tiers[1]["calls"] > 0
    assert 'edgewise_tier_total{cloud="far:2",count="calls"}' in metrics
