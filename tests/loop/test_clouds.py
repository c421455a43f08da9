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
from tests.loop.test_decoding import PROMPT
from tests.server.in_process import CHAT, app

IDS = tuple(PROMPT.encode())
EVERYTHING = Policy(threshold=0.0)
GRAY = replying("gray", prompt=PROMPT)


def saying(text: str, *, unsure: Sequence[int] = (), **options: Any) -> ScriptedCloud:
    """Knows its candidates; at the offsets in `unsure` two of them are as likely."""
    return ScriptedCloud(replying(text, prompt=PROMPT, unsure=unsure), candidates=2, **options)


def decoder(
    *clouds: CloudModel,
    policy: Policy = EVERYTHING,
    script: Script = GRAY,
    seed: int | None = None,
    **tier: Any,
) -> Decoder:
    near, *further = clouds
    tiers = [Tier(cloud, **{"share": 1.0, **tier}) for cloud in further]
    router, edge = Constant(1.0) if seed is None else Random(seed), ScriptedEdge(script)
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


def test_who_is_asked_further_on() -> None:
    near, mid, far = saying("b", unsure=[0]), saying("c", unsure=[0]), saying("d")
    answer = decoder(near, mid, far).generate(IDS, max_tokens=1)
    assert answer.text == "d"
    assert [asked(one) for one in (near, mid, far)] == [[0]] * 3
    assert [one.wrote for one in answer.usage.tiers] == [0, 0, 1]
    # Words without logprobs are compared, and trusted once they are right.
    near, far = (ScriptedCloud(replying("blue", prompt=PROMPT)) for _ in range(2))
    decoder(near, far).generate(IDS)
    assert asked(far) == [0]
    # A span of words that are right so far stands.
    near, far = saying("blue sea", unsure=[0]), saying("blue sea")
    answer = decoder(near, far, policy=Policy(threshold=0.0, span=4)).generate(IDS, max_tokens=4)
    assert answer.text == "blue"
    assert [one.wrote for one in answer.usage.tiers] == [4, 0]
    # A threshold of its own.
    for threshold, asks in ((0.0, 5), (1.0, 0)):
        near, far = saying("blue", unsure=[2]), saying("blue")
        decoder(near, far, threshold=threshold).generate(IDS)
        assert len(far.asks) == asks


FAULTS = CloudUnavailable, CloudTimeout, CloudProtocolError


@pytest.mark.parametrize("fault", FAULTS)
def test_where_one_fails_another_writes(fault: type[CloudError]) -> None:
    near, far = saying("b", fault=lambda _: fault("x")), saying("blue")
    loop = decoder(near, far)
    with loop.stream(IDS) as events:
        told = list(events)
    answer = collect(iter(told))
    assert answer.text == "blue"
    assert [tier.breaker.is_open for tier in loop.tiers] == [True, False]
    failed = len(near.asks)
    assert failed < 5
    assert [one.wrote for one in answer.usage.tiers] == [0, 5]
    assert answer.usage.failed_calls == failed
    outcomes = [one.outcome for one in told if isinstance(one, Consult)]
    assert outcomes == [fault.reason, "answered"] * failed + ["answered"] * (5 - failed)
    # Where the next fails, the words of the nearest stand.
    near, far = saying("blue", unsure=range(5)), saying("x", fault=lambda _: fault("x"))
    answer = decoder(near, far).generate(IDS)
    assert answer.text == "blue"
    assert answer.usage.tiers[0].wrote == 5
    assert answer.usage.tiers[1].failed == len(far.asks) < 5


def test_where_all_fail_the_edge_writes_or_the_answer_ends() -> None:
    def gone() -> ScriptedCloud:
        return saying("b", fault=lambda _: CloudUnavailable("gone"))

    answer = decoder(gone(), gone(), gone()).generate(IDS)
    assert answer.text == "gray"
    assert answer.usage.alone
    raising = Policy(threshold=0.0, on_cloud_error="raise")
    with pytest.raises(CloudUnavailable):
        decoder(gone(), gone(), gone(), policy=raising).generate(IDS)
    assert decoder(gone(), saying("blue"), policy=raising).generate(IDS).text == "blue"


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_cap_is_a_promise_about_all_of_them(cap: int) -> None:
    clouds = [saying("blue sky", unsure=range(9)) for _ in range(3)]
    answer = decoder(*clouds, policy=Policy(threshold=0.0, max_cloud_tokens=cap)).generate(IDS)
    assert sum(n for cloud in clouds for _, n in cloud.asks) == cap
    assert answer.usage.cloud_calls == cap


def mixed(seed: int) -> Callable[[int], CloudError | None]:
    """A link on which some consults fail, each in its way."""
    return lambda ask: FAULTS[(ask + seed) % 3]("x") if (ask * 7 + seed) % 5 == 0 else None


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    st.tuples(st.sampled_from([0.01, 0.1, 0.3]), st.sampled_from([0.0, 0.02, 0.2])),
    st.integers(0, 99),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([None, None, 1, 2, 5]),
)
def test_three_tiers_hold_their_budgets(
    lengths: list[int],
    share: float,
    shares: tuple[float, float],
    seed: int,
    span: int,
    faults: bool,
    cap: int | None,
) -> None:
    fault = mixed(seed) if faults else lambda _: None
    near, mid, far = (
        ScriptedCloud(noise(seed + one, scale=0.5), candidates=2, fault=fault) for one in range(3)
    )
    loop = Decoder(
        ScriptedEdge(noise(seed + 9)),
        router=Random(seed),
        policy=Policy(cloud_share=share, span=span, speculate=4, max_cloud_tokens=cap),
        cloud=near,
        tiers=[Tier(mid, share=shares[0], threshold=0.3), Tier(far, share=shares[1])],
    )
    output, calls, budget = 0, 0, None
    for length in lengths:
        events = loop.stream(IDS, max_tokens=length, budget=budget)
        usage, budget = collect(events).usage, events.budget
        output, calls = output + usage.edge_tokens + usage.cloud_tokens, calls + usage.cloud_calls
        assert sum(one.wrote for one in usage.tiers) == usage.cloud_tokens
        assert all(one.failed <= one.calls <= one.wanted for one in usage.tiers)
        # A promise about all of them together.
        assert cap is None or usage.cloud_tokens + usage.wasted_tokens <= cap
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
        clouds: list[CloudModel] = [
            ScriptedCloud(noise(seed + one, scale=0.7), candidates=2) for one in range(3)
        ]
        if speculate:
            clouds = [late(cloud, [seed % 4, 3, one]) for one, cloud in enumerate(clouds)]
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
    events = loop.stream(prompt, max_tokens=8, budget=Budget(bucket=7.0))
    assert list(events)
    for at, cloud in enumerate(clouds):
        assert bool(cloud.opened) == bool(cloud.asks) == (at == trusted)
        assert not cloud.prefetched or at == trusted
    if trusted is None:
        # It neither spends nor earns.
        assert events.budget.bucket == 7.0
    loop.generate(IDS, max_tokens=8)
    assert clouds[0].opened


def paired(*clouds: CloudModel | str, **options: Any) -> Pair:
    return Pair(ScriptedEdge(noise()), cloud=[*clouds], router=Constant(1.0), **options)


def test_a_pair_takes_what_messages_say_of_themselves() -> None:
    cloud = ScriptedCloud(noise(1))
    with paired(cloud, threshold=0.5) as pair:
        said: list[Any] = [
            {"role": "user", "content": "a", "local": True},
            Message("assistant", "b"),
            Message("user", "c"),
        ]
        for local, opened in ((0, 0), (1, 1)):
            pair.ask(said[local:], max_tokens=4)
            assert cloud.opened == opened
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
        paired(
            home.url,
            hosted.url,
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tier_share", "2%,1%"),
        ("tier_share", 1.5),
        ("tier_threshold", "high"),
        ("price", "1,0.1,2"),
        ("trust", "http://box"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, value: Any) -> None:
    clouds = [saying("a"), saying("b")]
    with pytest.raises(UsageError, match=name.replace("_", "-")):
        Pair(ScriptedEdge(noise()), cloud=clouds, **{name: value})
    for cloud in (clouds[0], "none"):
        with pytest.raises(UsageError, match="tier-share"):
            Pair(ScriptedEdge(noise()), cloud=cloud, tier_share=0.1)
        Pair(ScriptedEdge(noise()), cloud=cloud).close()


OWN: dict[str, Any] = {"price": "1,1,1", "trust": "box", "threshold": 0.0}


def test_the_price_is_that_of_the_last_cloud() -> None:
    near, far = saying("blue", unsure=[0]), saying("blue")
    near.name = "box"
    with paired(near, far, tier_share=1, **OWN) as pair:
        answer = pair.ask(IDS)
    assert answer.usage.cost is not None
    assert (len(near.asks), len(far.asks)) == (5, 1)
    assert answer.usage.cost.output_tokens == 1


@pytest.mark.parametrize("limit", [None, "0.0000001"])
def test_a_cloud_of_ones_own_costs_nothing_and_is_not_held_back(limit: str | None) -> None:
    """Neither where the last one, which has the price, may not see the prompt."""
    near, far = saying("blue"), saying("blue")
    near.name = "box"
    with paired(near, far, max_cost=limit, **OWN) as pair:
        answer = pair.ask(Prompt(IDS, local=True), max_tokens=4)
    assert len(near.asks) == answer.usage.cloud_tokens == 4
    assert answer.usage.cost is not None
    assert answer.usage.cost.paid == 0


@pytest.mark.parametrize("own", [None, ByteTokenizer("<other>")])
def test_a_cloud_in_this_process_is_ones_own(own: ByteTokenizer | None) -> None:
    near = LocalCloud(ScriptedEdge(noise(2), tokenizer=own))
    with paired(near, ScriptedCloud(noise(3))) as pair:
        assert [tier.trusted for tier in pair.decoder.tiers] == [True, False]


def test_a_new_conversation_has_new_budgets_with_every_cloud() -> None:
    clouds = [saying("blue", unsure=range(5)) for _ in range(2)]
    with paired(*clouds, threshold=0.0, tier_share=0.01, tier_threshold=0.0) as pair:
        for turn in (1, 2):
            pair.ask(IDS, max_tokens=5)
            assert len(clouds[1].asks) == turn * TIER_CREDIT / 2
            pair.forget()


def test_a_consult_took_as_long_as_its_own_cloud_did() -> None:
    near, far = saying("blue", unsure=[0]), saying("blue", delay=0.3)
    with decoder(near, far).stream(IDS, max_tokens=1) as events:
        first, second = [one.seconds for one in events if isinstance(one, Consult)]
    assert first < 0.3 <= second


def test_how_often_drafts_are_rejected_is_known_of_the_nearest() -> None:
    """It is drafted beyond the nearest's consults, whoever overrules it."""
    pair = decoder(saying("gray", unsure=[0]), saying("blue"))
    latencies = [tier.latency for tier in pair.tiers]
    before = [one.rejection_rate for one in latencies]
    pair.generate(IDS, max_tokens=1)
    assert latencies[0].rejection_rate > before[0]
    assert latencies[1].rejection_rate == before[1]


def test_behind_a_cloud_that_is_asked_between_words_the_next_is_too() -> None:
    own = ByteTokenizer("<other>")
    near = ScriptedCloud(noise(2), tokenizer=own)
    far = ScriptedCloud(replying("blue sea and sky", prompt=PROMPT))
    edge = ScriptedEdge(replying("gray sea and sky", prompt=PROMPT))
    clouds = [Adapter(near, own=own, edge=edge.tokenizer), far]
    with Pair(edge, cloud=clouds, router=Constant(1.0), threshold=0.0, tier_share=1) as pair:
        answer = pair.ask(IDS, max_tokens=24)
    assert near.asks
    assert answer.text.startswith("blue")
    asked = bytes(far.asks[0][0])[len(IDS) :].decode()
    assert asked in {"", "blue", "blue sea", "blue sea and"}


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
