"""What goes wrong while the cloud reads along, and what is promised whatever happens."""

import gc
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgewise import Pair
from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.cloud.record import PayloadsFile, SentRecord
from edgewise.costs.meter import Billing
from edgewise.costs.price import price_of
from edgewise.edge.base import Floats
from edgewise.errors import CloudUnavailable, EdgeError
from edgewise.events import Event, Finished, Pending, Token
from edgewise.gateway.local import LocalEngine
from edgewise.loop import verify
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.health import Breaker
from edgewise.loop.one_cloud import Tier
from edgewise.loop.policy import Budget, Policy, SharedBudget
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import Script, ScriptedEdge, noise, replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.doubles.wrapped_cloud import HeldCloud, late
from tests.gateway.running import device, gateway
from tests.loop.test_verify import IDS, PROMPT, ids_of

EDGE, CLOUD = "grey 日木 see", "gray 日本 sea"


def saying(text: str, *, unsure: Sequence[int] = ()) -> Script:
    return replying(text, prompt=PROMPT, unsure=unsure)


def cloud_of(text: str = CLOUD, **options: Any) -> ScriptedCloud:
    return ScriptedCloud(saying(text), verifies=True, **options)


def verifying(edge: Script, cloud: CloudModel, *tiers: Tier, **options: Any) -> Decoder:
    parts = {
        name: options.pop(name) for name in ("breaker", "billing", "record") if name in options
    }
    chosen: dict[str, Any] = {"verify": "on", "deadline": 60.0, **options}
    policy = Policy(**chosen)
    small = ScriptedEdge(edge)
    return Decoder(small, router=Constant(1.0), policy=policy, cloud=cloud, tiers=tiers, **parts)


def gone(ask: int) -> CloudUnavailable | None:
    """The first three times."""
    return CloudUnavailable("gone.") if ask < 3 else None


def dying(script: Script, at: int) -> Script:
    """The edge's server is gone where it should write the token `at`."""

    def says(ids: Sequence[int]) -> Floats:
        if len(ids) >= len(IDS) + at:
            raise EdgeError("the server is gone")
        return script(ids)

    return says


@pytest.mark.parametrize("at", range(len(CLOUD.encode()) + 1))
@pytest.mark.parametrize("unsure", [(), range(0, 20, 3)])
def test_where_the_edge_is_lost_the_cloud_goes_on(at: int, unsure: Sequence[int]) -> None:
    """Behind what was written, in the middle of blocks and of characters."""
    edge = dying(saying(EDGE, unsure=unsure), at)
    decoder = verifying(edge, late(cloud_of(), [30]), on_edge_error="cloud")
    answer = decoder.generate(IDS)
    assert (answer.text, answer.finish_reason) == (CLOUD, "stop")
    assert answer.usage.edge_error is not None
    last = answer.tokens[-1]
    assert (last.source, last.reason in ("edge_lost", "span")) == ("cloud", True)
    assert answer.usage.edge_tokens + answer.usage.cloud_tokens == len(answer.tokens)


@pytest.mark.parametrize("at", [0, 1, 5, 9])
def test_without_leave_the_answer_stops(at: int) -> None:
    cloud = cloud_of()
    decoder, told = verifying(dying(saying(EDGE), at), late(cloud, [3])), list[Event]()
    with pytest.raises(EdgeError):
        told.extend(decoder.stream(IDS))
    written = bytes(event.id for event in told if isinstance(event, Token))
    assert CLOUD.encode().startswith(written)
    assert (cloud.opened, cloud.closed) == (1, 1)


def test_the_nearest_verifies_and_is_counted() -> None:
    near, far = cloud_of(), cloud_of("x")
    answer = verifying(saying(EDGE), near, Tier(far, share=1.0)).generate(IDS)
    assert (answer.text, far.asks) == (CLOUD, [])
    first, second = answer.usage.tiers
    assert (first.calls, first.failed, first.wrote) == (len(near.asks), 0, 3)
    assert (second.wanted, second.calls, second.wrote) == (0, 0, 0)
    assert answer.usage.cloud_calls == len(near.asks)


def test_what_fails_is_counted_and_asked_of_no_other() -> None:
    near = cloud_of(fault=gone)
    answer = verifying(saying(EDGE), near, Tier(far := cloud_of(), share=1.0)).generate(IDS)
    assert (answer.text, far.asks) == (EDGE, [])
    assert answer.usage.tiers[0].calls == answer.usage.tiers[0].failed == len(near.asks) > 0


def test_a_share_of_a_further_cloud_holds() -> None:
    """A local prompt is for one that is trusted, whose own share says how much it writes."""
    near, far = cloud_of(), ScriptedCloud(noise(4), verifies=True)
    trusted = Tier(far, share=0.01, trusted=True)
    prompt = Prompt(tuple(IDS), (Message("user", "sky?", local=True),))
    decoder = verifying(noise(3), near, trusted, verify="exact", threshold=1.0)
    answer = decoder.generate(prompt, max_tokens=60)
    assert (near.asks, near.prefetched) == ([], [])
    assert answer.usage.cloud_tokens <= 3


def test_a_local_prompt_is_sent_nowhere() -> None:
    cloud = cloud_of()
    prompt = Prompt(tuple(IDS), (Message("user", "sky?", local=True),))
    answer = verifying(saying(EDGE), cloud, verify="exact").generate(prompt)
    assert (answer.text, cloud.opened, cloud.asks, cloud.prefetched) == (EDGE, 0, [], [])


def test_a_silent_cloud_is_waited_for_once() -> None:
    held = HeldCloud(saying(CLOUD), verifies=True)
    decoder = verifying(saying(EDGE * 9, unsure=range(0, 99, 4)), held, deadline=0.05)
    answer = decoder.generate(IDS)
    assert (answer.text, answer.usage.failed_calls) == (EDGE * 9, 1)
    reasons = [token.reason for token in answer.tokens]
    assert reasons == ["timeout", *["circuit_open"] * (len(reasons) - 1)]
    assert all(future.cancelled() for future in held.flying[:-1])


def test_the_cloud_reads_on_once_it_is_back() -> None:
    ticks = iter(range(10_000))
    cloud = cloud_of(CLOUD * 9, fault=gone)
    breaker = Breaker(clock=lambda: next(ticks) / 9)
    answer = verifying(saying(EDGE * 9, unsure=range(4)), cloud, breaker=breaker).generate(IDS)
    reasons = [str(token.reason) for token in answer.tokens]
    order = [reasons.index(one) for one in ("unavailable", "circuit_open", "corrected")]
    assert order == sorted(order)
    assert reasons[-1] == "verified"


def open_breaker() -> Breaker:
    breaker = Breaker(clock=lambda: 0.0)
    for _ in range(3):
        breaker.failed()
    return breaker


@pytest.mark.parametrize("why", ["budget", "circuit_open", "cap"])
def test_what_nobody_reads_is_written_as_it_comes(why: str) -> None:
    """As without a cloud, a token after the other."""
    share, cap = (0.1, None) if why == "budget" else (None, 1)
    budget = {"budget": Budget(bucket=-500.0), "cap": Budget(charged=1)}.get(why)
    more = {"breaker": open_breaker()} if why == "circuit_open" else {}
    cloud = cloud_of()
    decoder = verifying(saying(EDGE), cloud, cloud_share=share, max_cloud_tokens=cap, **more)
    told = list(decoder.stream(IDS, pending=True, budget=budget))
    assert "".join(type(event).__name__[0] for event in told) == "PT" * (len(told) // 2) + "F"
    assert {event.reason for event in told if isinstance(event, Token)} == {why}
    assert cloud.asks == []


@pytest.mark.parametrize("bucket", [-94.0, 0.0])
def test_an_answer_that_debt_keeps_from_the_cloud_is_not_read_ahead(bucket: float) -> None:
    """Not even once it has earned as much as an answer needs at its beginning."""
    cloud = cloud_of()
    decoder = verifying(saying(EDGE), cloud, cloud_share=0.9)
    with decoder.stream(IDS, budget=Budget(bucket=bucket)) as events:
        collect(events)
    assert cloud.prefetched[:1] == ([(*IDS,)] if bucket == 0 else [])
    assert bool(cloud.asks) == (bucket == 0)


def test_a_cap_that_is_spent_ends_the_sending() -> None:
    cloud = cloud_of()
    answer = verifying(saying(EDGE), cloud, max_cloud_tokens=1).generate(IDS)
    assert answer.usage.cloud_tokens == 1
    at = [token.reason for token in answer.tokens].index("corrected")
    assert {token.reason for token in answer.tokens[at + 1 :]} == {"cap"}
    assert answer.text == CLOUD[:4] + EDGE[4:]


@pytest.mark.parametrize("edge", [EDGE, CLOUD])
@pytest.mark.parametrize("unsure", [(), range(20)])
def test_every_token_of_the_answer_is_in_what_was_sent(
    edge: str, unsure: Sequence[int], tmp_path: Path
) -> None:
    path, cloud = tmp_path / "sent.jsonl", cloud_of()
    record = SentRecord(payloads=PayloadsFile(path))
    decoder = verifying(saying(edge, unsure=unsure), late(cloud, [9]), record=record)
    answer = decoder.generate(IDS)
    payloads = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert sum(one["tokens"] for one in payloads) == answer.usage.sent.tokens
    whole = [*IDS, *ids_of(answer)]
    for token in answer.tokens:
        end = len(IDS) + token.index + (token.reason == "verified")
        assert any(list(ids[:end]) == whole[:end] for ids, _ in cloud.asks)
    if edge == CLOUD:
        assert "".join(one["text"] for one in payloads if one["text"].isascii()) in PROMPT + CLOUD
        assert sum(one["tokens"] for one in payloads) == len(whole)


@pytest.mark.parametrize("stop", ["sea", "\n", "本 s", "y 日"])
@pytest.mark.parametrize("unsure", [(), (3, 8), range(20)])
def test_a_stop_string_is_found_inside_a_block_and_across_two(
    stop: str, unsure: Sequence[int]
) -> None:
    decoder = verifying(saying(EDGE, unsure=unsure), late(cloud_of(), [5]))
    answer = decoder.generate(IDS, stop=(stop,))
    assert (answer.text, answer.finish_reason) == (CLOUD.partition(stop)[0], "stop")


def test_a_stop_string_of_the_edges_does_not_stop_what_is_corrected() -> None:
    answer = verifying(saying(EDGE), late(cloud_of(), [50])).generate(IDS, stop=("ey", "see"))
    assert answer.text == CLOUD


@pytest.mark.parametrize(("small", "large"), [(20, 4096), (20, 20), (4096, 4096)])
@pytest.mark.parametrize("size", [1, len(IDS), 20])
def test_a_prompt_at_the_end_of_the_context(small: int, large: int, size: int) -> None:
    """And one of a single token, before which the cloud reads nothing."""
    prompt = [65] * size
    with closing(LocalCloud(ScriptedEdge(noise(4), context=large))) as cloud:
        edge = ScriptedEdge(noise(3), context=small)
        answers: list[Answer] = []
        for policy in (Policy(verify="exact"), Policy().cloud_alone()):
            decoder = Decoder(edge, router=Constant(0.0), policy=policy, cloud=cloud)
            answers.append(decoder.generate(prompt, max_tokens=min(40, small - size + 1)))
    assert ids_of(answers[0]) == ids_of(answers[1])
    assert answers[0].finish_reason == answers[1].finish_reason


def test_two_answers_at_once_keep_one_share() -> None:
    """Each begins with half of what there is; what is left of both is there again."""
    shared, share, decoder = (
        SharedBudget(),
        0.1,
        verifying(noise(3), late(ScriptedCloud(noise(4), verifies=True), [4]), cloud_share=0.1),
    )
    written = corrected = 0
    for _ in range(40):
        pair = [(shared.take(), number) for number in (0, 1)]
        streams = [
            decoder.stream([*IDS, number], max_tokens=30, budget=taken) for taken, number in pair
        ]
        told: list[list[Event]] = [[], []]
        while not all(map(_over, told)):
            for stream, events in zip(streams, told, strict=True):
                if not _over(events):
                    events.append(next(stream))
        for stream, events, (taken, _) in zip(streams, told, pair, strict=True):
            stream.close()
            shared.settle(taken, stream.budget)
            usage = collect(iter(events)).usage
            written += usage.edge_tokens + usage.cloud_tokens
            corrected += usage.cloud_tokens
    # The bucket, and the debt in which nothing is verified.
    assert 0 < corrected <= share * written + 16 + 109 + 2 * 30


def _over(events: Sequence[Event]) -> bool:
    return bool(events) and isinstance(events[-1], Finished)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("after", [1, 3, 9])
def test_an_answer_that_is_left_leaves_nothing(after: int, closes: bool) -> None:
    """Blocks in flight are cancelled, sessions given back; nothing is sent any more."""
    held = HeldCloud(saying(CLOUD), verifies=True)
    decoder = verifying(saying(EDGE, unsure=range(20)), held)
    stream = decoder.stream(IDS, pending=True)
    seen = [next(stream) for _ in range(min(after, verify.FLYING))]
    assert {type(event) for event in seen} == {Pending}
    sent = len(held.scripted.asks)
    assert sent == len(seen)
    if closes:
        stream.close()
    del stream
    gc.collect()
    assert all(future.cancelled() for future in held.flying)
    assert isinstance(edge := decoder.edge, ScriptedEdge)
    assert (edge.sessions, held.scripted.closed, len(held.scripted.asks)) == (0, 1, sent)


@pytest.mark.parametrize("limited", [False, True])
def test_costs_do_not_depend_on_the_link(limited: bool) -> None:
    """With limits nothing flies ahead; what is refused says so, and what was read is billed."""
    prices = "0.28,0.028,9" if limited else "0.28,0.28,0.28"
    told: list[object] = []
    for patience in (0, 30):
        billing = Billing(price_of(prices))
        cloud = late(ScriptedCloud(saying(CLOUD * 5), verifies=True), [patience])
        decoder = verifying(saying(EDGE * 5), cloud, billing=billing, verify="exact")
        answer = decoder.generate(IDS)
        cost = answer.usage.cost
        assert cost is not None
        assert cost.paid <= cost.alone
        told.append(([(one.id, one.reason) for one in answer.tokens], cost.input_tokens))
    assert told[0] == told[1]
    reasons = {reason for _, reason in told[0][0]}  # type: ignore[index]
    assert ("cost" in reasons, cost.input_tokens > 0) == (not limited, True)


def test_nothing_gathers_behind_a_long_answer() -> None:
    """Steps, drafts, verdicts, blocks and futures: as many at token 1,900 as at token 500."""
    text = "".join(f"{number} blue " for number in range(300))[:2000]
    wrong = "".join("#" if at % 40 == 9 else one for at, one in enumerate(text))
    edge = saying(text, unsure=range(0, 2000, 5))
    cloud = late(ScriptedCloud(saying(wrong), verifies=True), [20])
    sizes: dict[int, int] = {}
    for event in verifying(edge, cloud).stream(IDS):
        if isinstance(event, Token) and event.index in (500, 1900):
            gc.collect()
            sizes[event.index] = len(gc.get_objects())
    assert abs(sizes[1900] - sizes[500]) < 200


SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=7)


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_an_exact_answer_of_real_models_is_the_clouds_own(sampling: Sampling, link: bool) -> None:
    """With a temperature, too: both draw the same at a position. And through a gateway."""
    questions = pocketqa().questions[: 30 if sampling.greedy else 8]
    answers: list[list[list[int]]] = []
    with Pair(threads=1, deadline=60.0) as pair, ExitStack() as stack:
        edge, cloud = pair.both()
        if link:
            running = stack.enter_context(gateway([LocalEngine()]))
            cloud = stack.enter_context(device(running, tokenizer=edge.tokenizer))
        for policy in (Policy(verify="exact", deadline=60.0), Policy(deadline=60.0).cloud_alone()):
            decoder = Decoder(edge, router=Constant(0.0), policy=policy, cloud=cloud)
            made = [
                decoder.generate(pair.prompt(one.prompt), max_tokens=24, sampling=sampling)
                for one in questions
            ]
            assert {one.usage.failed_calls for one in made} == {0}
            assert policy.verify == "off" or all(one.usage.verified_tokens for one in made)
            answers.append([ids_of(one) for one in made])
    assert answers[0] == answers[1]
