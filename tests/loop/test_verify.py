"""The cloud reads along: what it lets stand is the edge's, what it corrects its own."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.completion import Completion, Verified
from edgewise.edge.base import EdgeAbilities, Floats, Rewinds
from edgewise.errors import CloudUnavailable
from edgewise.events import Consult, Token
from edgewise.grammar.compiled import Grammar
from edgewise.grammar.response_format import grammar_of, response_format_from
from edgewise.loop import verify
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.health import Breaker
from edgewise.loop.policy import INITIAL_BUCKET, Budget, Policy, SharedBudget
from edgewise.routers.untrained import Constant, MaxProb
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import Script, ScriptedEdge, noise, replying
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud
from tests.doubles.wrapped_cloud import NeverOpen, late
from tests.loop.test_speculate import agreeing, ending

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


def sharper(script: Script, by: float) -> Script:
    """The same likeliest ids, likelier."""
    return lambda ids: script(ids) * by


def verifying(
    edge: Script, cloud: Script, patience: Sequence[int] = (0,), *, failing: int = 0, **policy: Any
) -> Decoder:
    chosen: dict[str, Any] = {"verify": "on", "deadline": 60, **policy}
    rules = Policy(**chosen)
    large = late(ScriptedCloud(cloud, verifies=True), patience, failing=failing)
    small = ScriptedEdge(edge)
    return Decoder(small, router=Constant(0.0), policy=rules, cloud=large, breaker=NeverOpen())


def doubting(script: Script) -> Script:
    """A cloud that would write another token at a quarter of the places, here more, there less."""
    draws = noise(4)

    def says(ids: Sequence[int]) -> Floats:
        logits, drawn = script(ids).copy(), draws(ids)
        if drawn[0] > 2.0:
            logits[int(drawn[1:200].argmax())] = logits.max() + abs(drawn[200])
        return logits

    return says


def texts(edge: str, cloud: str, patience: Sequence[int] = (0,), **policy: Any) -> Decoder:
    return verifying(
        replying(edge, prompt=PROMPT), replying(cloud, prompt=PROMPT), patience, **policy
    )


def alone(script: Script, **options: Any) -> list[int]:
    """What a model writes by itself."""
    decoder = Decoder(ScriptedEdge(script), router=Constant(0.0), policy=Policy(cloud_share=0.0))
    return [token.id for token in decoder.generate(IDS, **options).tokens]


def ids_of(answer: Answer) -> list[int]:
    return [token.id for token in answer.tokens]


DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 500),
    "agreement": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    "ends": st.sampled_from([0, 12]),
    "patience": st.lists(st.integers(0, 12), min_size=1, max_size=6),
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


@given(**DRAWN)
def test_where_all_stands_the_answer_is_the_edges(**values: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = Drawn({**values, "agreement": 1.0})
        answer, _ = made.answer(patch)
    assert ids_of(answer) == alone(made.edge, **made.options)
    assert answer.usage.cloud_tokens == 0


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
    assert [one.reason for one in answer.tokens].count("verified") == len("gry sky") + 1
    usage = answer.usage
    assert (usage.cloud_tokens, usage.correction_tokens, usage.verified_tokens) == (1, 1, 8)
    assert usage.lowest_ratio == pytest.approx(1.0)


def test_the_first_token_is_the_clouds_own_choice() -> None:
    """Much follows from it: what only could be is not enough there."""

    def edge(ids: Sequence[int]):
        logits = noise(1)(ids) * 0
        logits[[97, 98]] = 10.0, 9.9
        return logits

    def cloud(ids: Sequence[int]):
        logits = edge(ids)
        logits[98] = 10.1
        return logits

    answer = verifying(edge, cloud).generate(IDS, max_tokens=3)
    assert [(one.id, one.reason) for one in answer.tokens] == [
        (98, "corrected"),
        (97, "verified"),
        (97, "verified"),
    ]
    assert answer.tokens[0].threshold == 1.0


def test_blocks_fly_while_the_edge_goes_on() -> None:
    """They end where it is unsure, or are full; the first token goes alone."""
    text = "abcdefghijklmnopqrstuvwxyz"
    edge = replying(text, prompt=PROMPT, unsure=(5,))
    decoder = verifying(edge, replying(text, prompt=PROMPT), [100])
    events = list(decoder.stream(IDS))
    consults = [(event.index, event.verified) for event in events if isinstance(event, Consult)]
    assert consults == [(0, 1), (1, 5), (6, 16), (22, 5)]
    first = next(at for at, event in enumerate(events) if isinstance(event, Token))
    assert isinstance(events[first - 1], Consult)


def test_a_model_in_this_process_takes_turns_with_the_edge() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    edge = replying(text, prompt=PROMPT, unsure=(5,))
    cloud = ScriptedCloud(replying(text, prompt=PROMPT), verifies=True)
    cloud.here = True
    decoder = Decoder(
        ScriptedEdge(edge), router=Constant(0.0), policy=Policy(verify="on"), cloud=cloud
    )
    seen: list[str] = []
    with decoder.stream(IDS, pending=True) as events:
        for event in events:
            seen.append(type(event).__name__[0])
    blocks = (1, 5, 16, 5)
    assert "".join(seen) == "".join(n * "P" + "C" + n * "T" for n in blocks) + "F"


def test_no_router_is_asked_where_the_cloud_reads_along() -> None:
    class Never(MaxProb):
        def score(self, step: Any) -> float:
            raise AssertionError("asked")

    decoder = texts("gray", "gray")
    decoder.router = Never()
    answer = decoder.generate(IDS)
    assert {token.score for token in answer.tokens} == {None}


def test_a_cloud_that_cannot_verify_is_asked_by_the_router() -> None:
    decoder = texts("grey sky", "gray sky", threshold=0.0)
    decoder.tiers[0].cloud = ScriptedCloud(replying("gray sky", prompt=PROMPT))
    answer = decoder.generate(IDS)
    assert {token.reason for token in answer.tokens} == {"critical"}


@pytest.mark.parametrize("rewinds", ["anywhere", "checkpoints", "no"])
def test_an_edge_that_cannot_roll_back_is_not_verified(rewinds: Rewinds) -> None:
    decoder = texts("grey sky", "gray sky")
    decoder.edge = ScriptedEdge(
        replying("grey sky", prompt=PROMPT), abilities=EdgeAbilities(rewinds=rewinds)
    )
    answer = decoder.generate(IDS)
    assert answer.text == ("grey sky" if rewinds == "no" else "gray sky")
    assert bool(answer.usage.verified_tokens) == (rewinds != "no")


def test_an_error_ends_the_answer_where_that_was_chosen() -> None:
    decoder = texts("gray", "gray", failing=11, on_cloud_error="raise")
    with pytest.raises(CloudUnavailable):
        decoder.generate(IDS)


def test_an_exact_answer_is_not_paused_for_what_failed_before_it() -> None:
    """But a cloud that is lost in it is waited for once."""
    text = "gray sky" * 6
    decoder = texts("grey" + text[4:], text, verify="exact")
    breaker = decoder.tiers[0].breaker = Breaker()
    breaker.failed(silent=True)
    assert decoder.generate(IDS).text == text
    breaker.failed(silent=True)
    decoder.tiers[0].cloud = late(
        ScriptedCloud(replying(text, prompt=PROMPT), verifies=True), [0], failing=1
    )
    reasons = [token.reason for token in decoder.generate(IDS).tokens]
    assert (reasons[0], reasons[-1]) == (CloudUnavailable.reason, "circuit_open")


def test_another_number_of_verdicts_is_a_fault() -> None:
    """Of a cloud that nobody checked before."""

    def short(ids: Sequence[int], n: int, send: Any) -> Flying:
        done = Flying()
        done.set_result(Completion(ids=(), logprobs=(), verified=(Verified(0.0, 1, 0.0),) * 40))
        return done

    decoder = texts("gray", "gray")
    decoder.tiers[0].cloud = WrappedCloud(
        ScriptedCloud(replying("gray", prompt=PROMPT), verifies=True), short
    )
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
    assert "grammar" in {token.reason for token in answer.tokens}
    assert "forced" in {token.reason for token in answer.tokens}
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

    @pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
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
