"""Guesses behind a token that the cloud changed are read again, where that pays and is exact."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Literal

import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud, LocalSession
from edgewise.edge.base import EdgeAbilities, Needs
from edgewise.edge.kv import FEW, KvSession, Outputs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Pending, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.latency import Latency
from edgewise.loop.policy import Policy
from edgewise.loop.redraft import Redraft, Redrafts
from edgewise.prompts import Prompt
from edgewise.routers.constant import Random
from edgewise.routers.uncertainty import Entropy, MaxProb
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, ScriptedEdge, replying
from tests.hybrid_models import HybridPaths
from tests.loop.test_run_ahead import IDS, PROMPT, Slow, _Late

EDGE, CLOUD = "grey sky", "gray sky"
CHANGED = 2
STEP = 0.01

Redrafted = Literal["exact", "always", "never"]


class Watched(ScriptedEdge):
    """Notes the ids of each pass; where it is `rough`, passes over several round otherwise."""

    def __init__(self, *, rough: bool = False, abilities: EdgeAbilities | None = None) -> None:
        script = replying(EDGE, prompt=PROMPT, unsure=(CHANGED,))
        super().__init__(script, **({"abilities": abilities} if abilities else {}))
        self.passes: list[int] = []
        self.rough = rough

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        session = super().session(needs, top=top)
        cache = session._cache
        run = cache.run

        def noted(ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool):
            self.passes.append(len(ids))
            # Whatever its size: a pass over several saves time.
            time.sleep(0.002)
            rows = run(ids, start, outputs, hidden=hidden)
            off = np.float32(1e-3 if self.rough and len(ids) > 1 else 0.0)
            return [row._replace(logits=row.logits + off) for row in rows]

        cache.run = noted
        return session


def answered(edge: ScriptedEdge, redraft: Redrafted, latency: Latency | None = None):
    large = Slow(replying(CLOUD, prompt=PROMPT), [4])
    policy = Policy(threshold=0.3, run_ahead=8, redraft=redraft, deadline=60)
    decoder = Decoder(edge, router=MaxProb(), policy=policy, cloud=large, latency=latency)
    with decoder.stream(IDS, pending=True) as events:
        seen = list(events)
    assert [event.id for event in seen if isinstance(event, Token)] == [*CLOUD.encode(), EOS]
    return seen


def test_a_draft_that_is_right_saves_its_passes() -> None:
    """Behind "gra" stands "y sk", as behind "gre"."""
    never, always = Watched(), Watched()
    seen = answered(never, "never")
    guessed = sum(isinstance(event, Pending) for event in seen)
    answered(always, "always")
    assert guessed > 1
    assert len(never.passes) - len(always.passes) == guessed
    assert max(always.passes[1:]) == guessed + 1
    assert sum(never.passes) == sum(always.passes)


def test_at_first_a_pass_is_compared_and_then_relied_on() -> None:
    latency = Latency()
    edge = Watched()
    answered(edge, "exact", latency)
    assert latency.redrafts.exact
    first = len(edge.passes)
    answered(edge, "exact", latency)
    assert len(edge.passes) - first < first


def test_passes_that_round_otherwise_are_not_used() -> None:
    latency = Latency()
    edge, plain = Watched(rough=True), Watched()
    answered(edge, "exact", latency)
    assert latency.redrafts.exact is False
    first = len(edge.passes)
    answered(edge, "exact", latency)
    answered(plain, "never")
    assert len(edge.passes) - first == len(plain.passes)


@pytest.mark.parametrize(
    "able",
    [EdgeAbilities(rewinds="checkpoints", slots=2), EdgeAbilities(batch_logits=False, slots=2)],
)
def test_an_engine_without_what_it_takes_reads_one_at_a_time(able: EdgeAbilities) -> None:
    edge = Watched(abilities=able)
    latency = Latency()
    answered(edge, "always", latency)
    assert not latency.redrafts.made


def test_a_draft_is_no_longer_than_a_batch_that_is_still_cheap() -> None:
    text = "ab" * 20
    edge = Watched()
    edge.script = replying("x" + text, prompt=PROMPT, unsure=(0,))
    large = Slow(replying("y" + text, prompt=PROMPT), [30])
    policy = Policy(threshold=0.3, run_ahead=30, redraft="always", deadline=60)
    decoder = Decoder(edge, router=MaxProb(), policy=policy, cloud=large)
    with decoder.stream(IDS, max_tokens=40) as events:
        assert collect(events).text == "y" + text[:39]
    assert max(edge.passes[1:]) == FEW


def test_it_is_given_up_where_it_loses_time_and_tried_again() -> None:
    told = Redrafts()
    assert told.pays(0.4)
    told.gained(0.4, -0.02, STEP)
    assert [told.pays(0.4) for _ in range(64)] == [*[False] * 31, True] * 2
    told.gained(0.4, 1.0, STEP)
    assert told.pays(0.4)
    assert told.made == 2


def test_the_less_it_costs_the_longer_it_is_tried() -> None:
    told = Redrafts()
    for _ in range(5):
        assert told.pays(0.4)
        told.gained(0.4, -STEP / 10, STEP)
    assert told.pays(0.4)
    for _ in range(40):
        told.gained(0.4, -STEP / 10, STEP)
    assert not told.pays(0.4)


def test_it_is_told_apart_by_the_score() -> None:
    told = Redrafts()
    for score, gain in ((0.4, 0.01), (0.01, -0.01), (0.0, -0.01), (1.0, 0.01)):
        told.gained(score, 2 * gain, STEP)
    assert [told.pays(score) for score in (0.3, 0.45, 1.0)] == [True] * 3
    assert [told.pays(score) for score in (0.009, 0.015, 0.0)] == [False] * 3
    # Nothing is known of these.
    assert told.pays(0.1)


def test_what_is_exact_is_so_for_a_size_until_it_is_not() -> None:
    told = Redrafts()
    assert not told.proven(2)
    told.compared(2, same=True)
    assert told.proven(2)
    assert not told.proven(3)
    told.compared(3, same=False)
    told.compared(4, same=True)
    assert told.exact is False
    assert not told.proven(2)


def test_a_draft_lasts_as_long_as_the_completion_agrees() -> None:
    draft = Redraft(3, [7, 8], 0.5)
    assert draft.behind(7) == Redraft(3, [8], 0.5)
    assert draft.behind(8) is None
    assert Redraft(3, [], 0.5).behind(7) is None


def test_the_policy_says_when() -> None:
    told = Redrafts()
    policies = [Policy(redraft=one) for one in ("exact", "always", "never")]
    assert [policy.redrafts(told, 0.5) for policy in policies] == [True, True, False]
    told.compared(2, same=False)
    assert [policy.redrafts(told, 0.5) for policy in policies] == [False, True, False]


class Far(LocalCloud):
    """The cloud model in this process, looked at often before it answers."""

    def open(self, prompt: Prompt) -> LocalSession:
        session = super().open(prompt)
        ask = session.ask
        session.ask = lambda *asked: _Late(ask(*asked), 5)
        return session


def test_the_bundled_pair_writes_the_same() -> None:
    """At a tenth of its tokens, by passes that are compared, trusted, or never used."""
    with (
        closing(LlamaModel(bundled("edge"), threads=1, context=256)) as edge,
        closing(LlamaModel(bundled("cloud"), threads=1, context=256)) as large,
        closing(Far(large)) as cloud,
    ):
        told: dict[str, list[list[int]]] = {}
        made: dict[str, int] = {}
        for redraft in ("never", "exact", "always"):
            policy = Policy(threshold=0.1, run_ahead=8, redraft=redraft, deadline=60)
            decoder = Decoder(edge, router=Entropy(), policy=policy, cloud=cloud)
            answers = [
                decoder.generate(edge.tokenizer.encode_prompt(text), max_tokens=24)
                for text in ("Q: What is the capital of France?\nA:", "Q: 12 + 30?\nA:")
            ]
            told[redraft] = [[token.id for token in answer.tokens] for answer in answers]
            made[redraft] = decoder.latency.redrafts.made
        assert told["exact"] == told["always"] == told["never"]
        assert made["never"] == 0 < made["exact"]


def test_an_engine_that_rounds_batches_otherwise_writes_the_same_bits(
    hybrid_paths: HybridPaths,
) -> None:
    """Weights in 32 bits: on most CPUs a pass over several ids adds up in another order."""
    with LlamaModel(hybrid_paths["llama"], threads=1, context=128) as edge:
        size = edge.tokenizer.size

        def other(ids: Sequence[int]):
            return np.eye(1, size, 97 + (7 * ids[-1] + len(ids)) % 26, dtype=np.float32)[0]

        def answer(cloud: ScriptedCloud, ahead: int) -> list[object]:
            policy = Policy(threshold=0.6, cloud_share=0.4, deadline=60, run_ahead=ahead)
            decoder = Decoder(edge, router=Random(1), policy=policy, cloud=cloud)
            ids = edge.tokenizer.encode_prompt("Be brief. What is it?")
            answer = decoder.generate(ids, max_tokens=64)
            return [(token.id, token.logprob, token.source) for token in answer.tokens]

        assert answer(Slow(other, [9, 3, 16, 1]), 16) == answer(ScriptedCloud(other), 0)
