"""The cloud reads along: what it lets stand, what it corrects, and what is promised if it fails."""

import gc
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from edgewise import Pair
from edgewise.cloud.base import CloudModel
from edgewise.cloud.local import LocalCloud
from edgewise.cloud.record import PayloadsFile, SentRecord
from edgewise.completion import Completion, Verified
from edgewise.costs.meter import Billing
from edgewise.costs.price import price_of
from edgewise.edge.base import EdgeAbilities, Floats, Rewinds
from edgewise.errors import CloudRejected, CloudUnavailable, EdgeError
from edgewise.events import Consult, Event, Pending, Token
from edgewise.gateway.local import LocalEngine
from edgewise.grammar.compiled import Grammar
from edgewise.grammar.response_format import grammar_of, response_format_from
from edgewise.loop import verify
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.health import Breaker
from edgewise.loop.one_cloud import Tier
from edgewise.loop.policy import INITIAL_BUCKET, Budget, Policy, SharedBudget
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import Constant, MaxProb
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import SIZE, Script, ScriptedEdge, noise, replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.wrapped_cloud import HeldCloud, NeverOpen, late
from tests.gateway.running import device, gateway
from tests.loop.test_speculate import LINKED, agreeing, ending

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


def sharper(script: Script, by: float) -> Script:
    """The same likeliest ids, likelier."""
    return lambda ids: script(ids) * by


def reading_along(edge: Script, cloud: CloudModel, *tiers: Tier, **options: Any) -> Decoder:
    parts: dict[str, Any] = {"router": Constant(1.0)}
    for name in ("router", "breaker", "billing", "record"):
        if name in options:
            parts[name] = options.pop(name)
    chosen: dict[str, Any] = {"verify": "on", "deadline": 60.0, **options}
    policy = Policy(**chosen)
    return Decoder(ScriptedEdge(edge), policy=policy, cloud=cloud, tiers=tiers, **parts)


def verifying(
    edge: Script, cloud: Script, patience: Sequence[int] = (0,), *, failing: int = 0, **policy: Any
) -> Decoder:
    large = late(ScriptedCloud(cloud, verifies=True), patience, failing=failing)
    return reading_along(edge, large, router=Constant(0.0), breaker=NeverOpen(), **policy)


def doubting(script: Script) -> Script:
    """A cloud that would write another token at a quarter of the places, here more, there less."""
    draws = noise(4)

    def says(ids: Sequence[int]) -> Floats:
        logits, drawn = script(ids).copy(), draws(ids)
        if drawn[0] > 2.0:
            logits[int(drawn[1:200].argmax())] = logits.max() + abs(drawn[200])
        return logits

    return says


def texts(edge: str, cloud: str, **policy: Any) -> Decoder:
    return verifying(replying(edge, prompt=PROMPT), replying(cloud, prompt=PROMPT), **policy)


def alone(script: Script, **options: Any) -> list[int]:
    """What a model writes by itself."""
    decoder = Decoder(ScriptedEdge(script), router=Constant(0.0), policy=Policy(cloud_share=0.0))
    return [token.id for token in decoder.generate(IDS, **options).tokens]


def ids_of(answer: Answer) -> list[int]:
    return [token.id for token in answer.tokens]


DRAWN: dict[str, st.SearchStrategy[Any]] = {
    **LINKED,
    "block": st.integers(1, 9),
    "flying": st.integers(1, 6),
    "stop": st.sampled_from([(), ("a",), ("\x00", "zz"), ("e", "qu")]),
    "max_tokens": st.sampled_from([1, 7, 30]),
    "certain": st.booleans(),
}


class Drawn:
    """Two scripts, and a link between them, as drawn."""

    def __init__(self, drawn: dict[str, Any]) -> None:
        seed, self.patience = drawn["seed"], drawn["patience"]
        sharp = 20.0 if drawn["certain"] else 1.0
        made = [ending(noise(one), drawn["ends"]) for one in (seed, seed + 1000)]
        self.edge = sharper(made[0], sharp)
        self.cloud = agreeing(self.edge, sharper(made[1], sharp), drawn["agreement"])
        self.options = {"stop": drawn["stop"], "max_tokens": drawn["max_tokens"]}
        self.sizes = drawn["block"], drawn["flying"]

    def answer(
        self, monkeypatch: pytest.MonkeyPatch, *, waits: bool = False, **more: Any
    ) -> tuple[Answer, Budget]:
        """With the link as it is, or with a block a token that is waited for."""
        sizes, patience = ((1, 1), [0]) if waits else (self.sizes, self.patience)
        with monkeypatch.context() as patched:
            patched.setattr(verify, "BLOCK", sizes[0])
            patched.setattr(verify, "FLYING", sizes[1])
            decoder = verifying(self.edge, self.cloud, patience, **more)
            with decoder.stream(IDS, **self.options) as events:
                return collect(events), events.budget


@given(**DRAWN)
def test_an_exact_answer_is_the_clouds_own(**values: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = Drawn(values)
        answer, _ = made.answer(patch, verify="exact")
    assert ids_of(answer) == alone(made.cloud, **made.options)
    usage = answer.usage
    assert usage.verified_tokens + usage.correction_tokens == len(answer.tokens)
    assert usage.correction_tokens == usage.cloud_tokens


@given(
    share=st.sampled_from([None, 0.02, 0.1, 0.5]), cap=st.sampled_from([None, None, 0, 3]), **DRAWN
)
def test_the_answer_does_not_depend_on_the_link(
    share: float | None, cap: int | None, **values: Any
) -> None:
    """Nor on how drafts were cut into blocks, nor on how many blocks flew."""
    rules: dict[str, Any] = {"cloud_share": share, "max_cloud_tokens": cap}
    with pytest.MonkeyPatch.context() as patch:
        made = Drawn(values)
        waiting, left = made.answer(patch, waits=True, **rules)
        flying, later = made.answer(patch, **rules)
    told = [
        [(t.id, t.text, t.source, t.reason, t.ratio, t.threshold, t.draft) for t in one.tokens]
        for one in (waiting, flying)
    ]
    assert told[0] == told[1]
    assert left == later
    if values["agreement"] == 1.0:  # all stands: the answer is the edge's
        assert ids_of(flying) == alone(made.edge, **made.options)
        assert flying.usage.cloud_tokens == 0
    if cap is not None:
        assert flying.usage.cloud_tokens <= cap


@given(failing=st.integers(2, 5), agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_a_block_that_fails_is_written_as_it_is_and_says_so(failing: int, agreement: float) -> None:
    edge = noise(3)
    cloud = agreeing(edge, noise(4), agreement)
    answer = verifying(edge, cloud, failing=failing).generate(IDS, max_tokens=30)
    failed = [token for token in answer.tokens if token.reason == CloudUnavailable.reason]
    assert answer.usage.failed_calls > 0
    assert all((one.source, one.ratio, one.threshold) == ("edge", None, None) for one in failed)
    told = answer.usage.verified_tokens + answer.usage.correction_tokens + len(failed)
    # Alone is who has nothing of the cloud's: a token that it let stand is something.
    assert answer.usage.alone == (len(failed) == len(answer.tokens))
    assert told == len(answer.tokens) > 0


def test_a_corrected_token_tells_what_the_edge_had() -> None:
    answer = texts("grey sky", "gray sky").generate(IDS)
    assert answer.text == "gray sky"
    (corrected,) = [token for token in answer.tokens if token.reason == "corrected"]
    assert (corrected.index, corrected.source, chr(corrected.draft or 0)) == (2, "cloud", "e")
    assert corrected.ratio is not None
    assert corrected.ratio < 0.01
    assert corrected.threshold == pytest.approx(0.3)
    usage = answer.usage
    assert (usage.cloud_tokens, usage.correction_tokens, usage.verified_tokens) == (1, 1, 8)
    assert usage.lowest_ratio == pytest.approx(1.0)


def test_the_first_token_is_the_clouds_own_choice() -> None:
    """Much follows from it: what only could be is not enough there."""

    def likely(other: float) -> Script:
        logits = np.zeros(SIZE, np.float32)
        logits[[97, 98]] = 10.0, other
        return lambda ids: logits

    tokens = verifying(likely(9.9), likely(10.1)).generate(IDS, max_tokens=3).tokens
    assert [one.id for one in tokens] == [98, 97, 97]
    assert [one.reason for one in tokens] == ["corrected", "verified", "verified"]
    assert tokens[0].threshold == 1.0


TEXT = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("here", [False, True])
def test_blocks_fly_while_the_edge_goes_on(here: bool) -> None:
    """They end where it is unsure, or are full; the first token goes alone.

    A model in this process takes turns with the edge.
    """
    decoder = verifying(replying(TEXT, prompt=PROMPT, unsure=(5,)), replying(TEXT, prompt=PROMPT))
    cloud: Any = ScriptedCloud(replying(TEXT, prompt=PROMPT), verifies=True)
    cloud.here = here
    decoder.tiers[0].cloud = cloud if here else late(cloud, [100])
    events = list(decoder.stream(IDS, pending=True))
    blocks = [(event.index, event.verified) for event in events if isinstance(event, Consult)]
    assert blocks == [(0, 1), (1, 5), (6, 16), (22, 5)]
    told = "".join(type(event).__name__[0] for event in events)
    if here:
        assert told == "".join(n * "P" + "C" + n * "T" for _, n in blocks) + "F"
    else:
        assert told.startswith("PP")
        assert told[told.index("T") - 1] == "C"


def test_a_router_is_asked_where_the_cloud_cannot_verify_alone() -> None:
    class Never(MaxProb):
        def score(self, step: Any) -> float:
            raise AssertionError("asked")

    decoder = texts("gray", "gray")
    decoder.router = Never()
    assert {token.score for token in decoder.generate(IDS).tokens} == {None}
    decoder = texts("grey sky", "gray sky", threshold=0.0)
    decoder.tiers[0].cloud = ScriptedCloud(replying("gray sky", prompt=PROMPT))
    assert {token.reason for token in decoder.generate(IDS).tokens} == {"critical"}


@pytest.mark.parametrize("rewinds", ["anywhere", "checkpoints", "no"])
def test_an_edge_that_cannot_roll_back_is_not_verified(rewinds: Rewinds) -> None:
    decoder = texts("", "gray sky")
    script, abilities = replying("grey sky", prompt=PROMPT), EdgeAbilities(rewinds=rewinds)
    decoder.edge = ScriptedEdge(script, abilities=abilities)
    answer = decoder.generate(IDS)
    assert answer.text == ("grey sky" if rewinds == "no" else "gray sky")
    assert bool(answer.usage.verified_tokens) == (rewinds != "no")


def test_an_exact_answer_is_not_paused_for_what_failed_before_it() -> None:
    """But a cloud that is lost in it is waited for once; an error ends it where that was chosen."""
    text = "gray sky" * 6
    decoder = texts("grey" + text[4:], text, verify="exact")
    breaker = decoder.tiers[0].breaker = Breaker()
    breaker.failed(silent=True)
    assert decoder.generate(IDS).text == text
    breaker.failed(silent=True)
    decoder.tiers[0].cloud = late(decoder.tiers[0].cloud, [0], failing=1)
    reasons = [token.reason for token in decoder.generate(IDS).tokens]
    assert (reasons[0], reasons[-1]) == (CloudUnavailable.reason, "circuit_open")
    with pytest.raises(CloudUnavailable):
        texts("gray", "gray", failing=11, on_cloud_error="raise").generate(IDS)


def test_another_number_of_verdicts_is_a_fault() -> None:
    """Of a cloud that nobody checked before."""
    done = Flying()
    done.set_result(Completion(ids=(), logprobs=(), verified=(Verified(0.0, 1, 0.0),) * 40))
    decoder = texts("gray", "gray")
    decoder.tiers[0].cloud = WrappedCloud(decoder.tiers[0].cloud, lambda ids, n, send: done)
    answer = decoder.generate(IDS)
    assert {token.reason for token in answer.tokens} == {"protocol"}
    assert answer.text == "gray"


def grammar(schema: dict[str, Any]) -> Grammar:
    made = response_format_from(schema)
    assert made is not None
    found = grammar_of(ScriptedEdge(noise()).tokenizer, made)
    assert found is not None
    return found


def test_a_grammar_holds_for_corrections() -> None:
    """What it forces is not judged; where it refuses the cloud's token the edge's stays."""
    decoder = texts('{"sky":"blue"}', '{"sky":"gray"}')
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "bleu"]}}}
    answer = decoder.generate(IDS, grammar=grammar(schema))
    assert {"grammar", "forced"} <= {token.reason for token in answer.tokens}
    assert answer.usage.cloud_tokens == 0


class TestTheShare:
    """It is a promise over answers, and no answer is left alone halfway."""

    @staticmethod
    def ask(decoder: Decoder, shared: SharedBudget, tokens: int) -> Answer:
        taken = shared.take()
        with decoder.stream(IDS, max_tokens=tokens, budget=taken) as events:
            answer = collect(events)
        shared.settle(taken, events.budget)
        return answer

    @pytest.mark.deep
    @pytest.mark.parametrize("share", [0.02, 0.3])
    def test_holds_where_the_cloud_wants_every_token(self, share: float) -> None:
        other = sharper(noise(4), 20.0)
        decoder, shared = verifying(noise(3), other, cloud_share=share), SharedBudget()
        written = corrected = 0
        for _ in range(300):
            usage = self.ask(decoder, shared, 40).usage
            assert usage.cloud_tokens in (0, 40)
            written, corrected = written + 40, corrected + usage.cloud_tokens
            # The bucket, and the last answer's excess.
            assert corrected <= share * written + 16 + 109 + 40

    def test_moves_the_ratio_slowly(self) -> None:
        """Easy answers earn exactness; one hard one costs a third."""
        policy = Policy(verify="on", cloud_share=0.1)

        def ratio(bucket: float, reserve: float = 0.0) -> float:
            return policy.ratio_now(Budget(bucket=bucket, reserve=reserve), first=False)

        assert ratio(INITIAL_BUCKET) == pytest.approx(0.3)
        assert ratio(64) == ratio(100) == pytest.approx(1.0)
        assert ratio(8, 8) == ratio(16)
        assert ratio(1) / ratio(16) == pytest.approx(0.69, abs=0.01)
        assert ratio(-1000) == 0.02
        assert Policy(verify="on").ratio_now(Budget(bucket=-500.0), first=False) == 0.3
        # The first token is held to more, but not by what the share lacks.
        assert policy.ratio_now(Budget(bucket=16.0), first=True) == 1.0
        assert policy.ratio_now(Budget(bucket=1.0), first=True) == ratio(1)

    def test_exact_has_none(self) -> None:
        answer = verifying(noise(3), noise(4), verify="exact").generate(
            IDS, max_tokens=20, budget=Budget(bucket=-500.0)
        )
        assert answer.usage.cloud_tokens == 20

    def test_answers_at_once_do_not_spend_it_one_by_one(self) -> None:
        """What one spends lowers the ratio of those beside it: else nothing is left to read with.

        With a full bucket sixteen answers begin exactly, and the cloud wants a quarter of the
        tokens.
        """
        wants, shared = doubting(noise(3)), SharedBudget(64.0)
        decoder = verifying(noise(3), wants, cloud_share=0.1)
        taken = [shared.take() for _ in range(16)]
        streams = [
            decoder.stream([*IDS, n], max_tokens=100, budget=one, follow=shared.follow)
            for n, one in enumerate(taken)
        ]
        written = 0
        for turn in zip_longest(*streams):
            written += sum(isinstance(event, Token) for event in turn)
        for one, stream in zip(taken, streams, strict=True):
            shared.settle(one, stream.budget)
        assert written > 1000
        assert decoder.policy.refuses(shared.take(), first=True) is None


EDGE, CLOUD = "grey 日木 see", "gray 日本 sea"


def saying(text: str, *, unsure: Sequence[int] = ()) -> Script:
    return replying(text, prompt=PROMPT, unsure=unsure)


def cloud_of(text: str = CLOUD, **options: Any) -> ScriptedCloud:
    return ScriptedCloud(saying(text), verifies=True, **options)


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
    edge, cloud = dying(saying(EDGE, unsure=unsure), at), cloud_of()
    answer = reading_along(edge, late(cloud, [30]), on_edge_error="cloud").generate(IDS)
    assert (answer.text, answer.finish_reason) == (CLOUD, "stop")
    assert answer.usage.edge_error is not None
    last = answer.tokens[-1]
    assert (last.source, last.reason in ("edge_lost", "span")) == ("cloud", True)
    assert answer.usage.edge_tokens + answer.usage.cloud_tokens == len(answer.tokens)
    # Without leave the answer stops.
    opened, told = cloud.opened, list[Event]()
    with pytest.raises(EdgeError):
        told.extend(reading_along(edge, late(cloud, [3])).stream(IDS))
    written = bytes(event.id for event in told if isinstance(event, Token))
    assert CLOUD.encode().startswith(written)
    assert (cloud.opened, cloud.closed) == (opened + 1, opened + 1)


def test_the_nearest_verifies_and_is_counted() -> None:
    near, far = cloud_of(), cloud_of("x")
    answer = reading_along(saying(EDGE), near, Tier(far, share=1.0)).generate(IDS)
    assert (answer.text, far.asks) == (CLOUD, [])
    first, second = answer.usage.tiers
    assert (first.calls, first.failed, first.wrote) == (len(near.asks), 0, 3)
    assert (second.wanted, second.calls, second.wrote) == (0, 0, 0)
    assert answer.usage.cloud_calls == len(near.asks)
    # What fails is counted and asked of no other.
    near = cloud_of(fault=gone)
    answer = reading_along(saying(EDGE), near, Tier(far, share=1.0)).generate(IDS)
    assert (answer.text, far.asks) == (EDGE, [])
    assert answer.usage.tiers[0].calls == answer.usage.tiers[0].failed == len(near.asks) > 0


def test_a_share_of_a_further_cloud_holds() -> None:
    """A local prompt is for one that is trusted, whose own share says how much it writes."""
    near, far = cloud_of(), ScriptedCloud(noise(4), verifies=True)
    trusted = Tier(far, share=0.01, trusted=True)
    prompt = Prompt(tuple(IDS), (Message("user", "sky?", local=True),))
    decoder = reading_along(noise(3), near, trusted, verify="exact", threshold=1.0)
    assert decoder.generate(prompt, max_tokens=60).usage.cloud_tokens <= 3
    # Without one it is sent nowhere.
    assert reading_along(saying(EDGE), near, verify="exact").generate(prompt).text == EDGE
    assert (near.opened, near.asks, near.prefetched) == (0, [], [])


def test_a_silent_cloud_is_waited_for_once() -> None:
    held = HeldCloud(saying(CLOUD), verifies=True)
    decoder = reading_along(saying(EDGE * 9, unsure=range(0, 99, 4)), held, deadline=0.05)
    answer = decoder.generate(IDS)
    assert (answer.text, answer.usage.failed_calls) == (EDGE * 9, 1)
    first, *others = [token.reason for token in answer.tokens]
    assert (first, {*others}) == ("timeout", {"circuit_open"})
    assert all(future.cancelled() for future in held.flying[:-1])


def test_the_cloud_reads_on_once_it_is_back() -> None:
    ticks = iter(range(10_000))
    cloud = cloud_of(CLOUD * 9, fault=gone)
    breaker = Breaker(clock=lambda: next(ticks) / 9)
    answer = reading_along(saying(EDGE * 9, unsure=range(4)), cloud, breaker=breaker).generate(IDS)
    reasons = [str(token.reason) for token in answer.tokens]
    order = [reasons.index(one) for one in ("unavailable", "circuit_open", "corrected")]
    assert order == sorted(order)
    assert reasons[-1] == "verified"


@pytest.mark.parametrize("answers", [1, 3])
def test_what_one_answer_is_declined_for_pauses_the_cloud_for_no_other(answers: int) -> None:
    """One that is too long for the cloud is declined each time; one that declines all is left."""
    breaker = Breaker(clock=lambda: 0.0)
    cloud = cloud_of(fault=lambda ask: CloudRejected("too long."))
    decoder = reading_along(saying(EDGE * 9, unsure=range(0, 99, 4)), cloud, breaker=breaker)
    for _ in range(answers):
        decoder.generate(IDS)
    assert breaker.is_open == (answers == 3)


@pytest.mark.parametrize("why", ["budget", "circuit_open", "cap"])
def test_what_nobody_reads_is_written_as_it_comes(why: str) -> None:
    """As without a cloud, a token after the other."""
    cloud, breaker = cloud_of(), Breaker(clock=lambda: 0.0)
    for _ in range(3 if why == "circuit_open" else 0):
        breaker.failed()
    share, cap = (0.1, None) if why == "budget" else (None, 1)
    budget = {"budget": Budget(bucket=-500.0), "cap": Budget(charged=1)}.get(why)
    more: dict[str, Any] = {"cloud_share": share, "max_cloud_tokens": cap, "breaker": breaker}
    decoder = reading_along(saying(EDGE), cloud, **more)
    told = list(decoder.stream(IDS, pending=True, budget=budget))
    assert "".join(type(event).__name__[0] for event in told) == "PT" * (len(told) // 2) + "F"
    assert {event.reason for event in told if isinstance(event, Token)} == {why}
    assert cloud.asks == []


@pytest.mark.parametrize("bucket", [-94.0, 0.0])
def test_an_answer_that_debt_keeps_from_the_cloud_is_not_read_ahead(bucket: float) -> None:
    """Not even once it has earned as much as an answer needs at its beginning."""
    cloud = cloud_of()
    decoder = reading_along(saying(EDGE), cloud, cloud_share=0.9)
    collect(decoder.stream(IDS, budget=Budget(bucket=bucket)))
    assert cloud.prefetched[:1] == ([(*IDS,)] if bucket == 0 else [])
    assert bool(cloud.asks) == (bucket == 0)


def test_a_cap_that_is_spent_ends_the_sending() -> None:
    cloud = cloud_of()
    answer = reading_along(saying(EDGE), cloud, max_cloud_tokens=1).generate(IDS)
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
    decoder = reading_along(saying(edge, unsure=unsure), late(cloud, [9]), record=record)
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
    decoder = reading_along(saying(EDGE, unsure=unsure), late(cloud_of(), [5]))
    answer = decoder.generate(IDS, stop=(stop,))
    assert (answer.text, answer.finish_reason) == (CLOUD.partition(stop)[0], "stop")
    # One of the edge's does not stop what is corrected.
    assert decoder.generate(IDS, stop=("ey", "see")).text == CLOUD


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
    cloud = late(ScriptedCloud(noise(4), verifies=True), [4])
    shared, decoder = SharedBudget(), reading_along(noise(3), cloud, cloud_share=0.1)
    written = corrected = 0
    for _ in range(40):
        taken = [shared.take() for _ in range(2)]
        streams = [
            decoder.stream([*IDS, number], max_tokens=30, budget=budget)
            for number, budget in enumerate(taken)
        ]
        told = zip(*zip_longest(*streams), strict=True)
        for stream, budget, events in zip(streams, taken, told, strict=True):
            shared.settle(budget, stream.budget)
            usage = collect(filter(None, events)).usage
            written += usage.edge_tokens + usage.cloud_tokens
            corrected += usage.cloud_tokens
    # The bucket, and the debt in which nothing is verified.
    assert 0 < corrected <= 0.1 * written + 16 + 109 + 2 * 30


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("after", [1, 3, 9])
def test_an_answer_that_is_left_leaves_nothing(after: int, closes: bool) -> None:
    """Blocks in flight are cancelled, sessions given back; nothing is sent any more."""
    held = HeldCloud(saying(CLOUD), verifies=True)
    decoder = reading_along(saying(EDGE, unsure=range(20)), held)
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
        decoder = reading_along(saying(EDGE * 5), cloud, billing=billing, verify="exact")
        answer = decoder.generate(IDS)
        cost = answer.usage.cost
        assert cost is not None
        assert cost.paid <= cost.alone
        told.append(([(one.id, one.reason) for one in answer.tokens], cost.input_tokens))
    assert told[0] == told[1]
    reasons = {reason for _, reason in told[0][0]}  # type: ignore[index]
    assert ("cost" in reasons, cost.input_tokens > 0) == (not limited, True)


@pytest.mark.deep
def test_nothing_gathers_behind_a_long_answer() -> None:
    """Steps, drafts, verdicts, blocks and futures: as many at token 1,900 as at token 500."""
    text = "".join(f"{number} blue " for number in range(300))[:2000]
    wrong = "".join("#" if at % 40 == 9 else one for at, one in enumerate(text))
    edge = saying(text, unsure=range(0, 2000, 5))
    cloud = late(ScriptedCloud(saying(wrong), verifies=True), [20])
    sizes: dict[int, int] = {}
    for event in reading_along(edge, cloud).stream(IDS):
        if isinstance(event, Token) and event.index in (500, 1900):
            gc.collect()
            sizes[event.index] = len(gc.get_objects())
    assert abs(sizes[1900] - sizes[500]) < 200


SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=7)


@pytest.mark.deep
@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_an_exact_answer_of_real_models_is_the_clouds_own(sampling: Sampling, link: bool) -> None:
    """With a temperature, too: both draw the same at a position. And through a gateway."""
    questions = pocketqa().questions[: 12 if sampling.greedy else 6]
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
