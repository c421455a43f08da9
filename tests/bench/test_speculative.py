"""Speculative decoding: the cloud's own answer token for token, whatever the edge drafts."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.bench.frontier.base import CloudRequest, MeasuredSystem
from edgewise.bench.frontier.speculation_time import computed_time
from edgewise.bench.frontier.speculative import Speculated, Speculative
from edgewise.bench.frontier.verifiers import LocalVerifier, Verified
from edgewise.bench.pace import Pace, PacedEdge
from edgewise.edge.base import EdgeAbilities, EdgeModel, Floats, Tokenizer
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudUnavailable,
    ContextOverflow,
    UsageError,
    VocabularyMismatch,
)
from edgewise.evaluation.systems import question_ids
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.testing.scripted_edge import (
    EOS,
    SIZE,
    ByteTokenizer,
    Script,
    ScriptedEdge,
    noise,
    replying,
)

PROMPT = list(b"sky: ")
NEAR_TIE = 0.5
"""Nats; batched and single decodes of the bundled models differ by less."""


def no_wait(_: int) -> float:
    return 0.0


def ending(script: Script, one_in: int) -> Script:
    """`script`, which ends its text at about one in so many places."""

    def ended(ids: Sequence[int]) -> Floats:
        logits = script(ids).copy()
        if one_in and sum(ids) % one_in == 0:
            logits[EOS] = 100.0
        return logits

    return ended


def agreeing(script: Script, percent: int, seed: int) -> Script:
    """Says what `script` says in so many places of a hundred, else something else."""
    other = noise(seed + 1)

    def mixed(ids: Sequence[int]) -> Floats:
        draw = (hash((seed, *ids)) >> 7) % 100
        return script(ids) if draw < percent else other(ids)

    return mixed


def alone(cloud: EdgeModel, prompt: Sequence[int], most: int) -> list[int]:
    """What the cloud writes by itself, greedily, a pass a token."""
    written: list[int] = []
    session = cloud.session()
    try:
        session.open(prompt)
        while len(written) < most and not (written and written[-1] in cloud.tokenizer.eos_ids):
            if written:
                session.extend(written[-1:])
            written.append(session.step().proposed)
    finally:
        session.close()
    return written


def speculated(
    edge: EdgeModel, cloud: EdgeModel, *, draft: int, pipelined: bool, most: int
) -> Speculated:
    with closing(LocalVerifier(cloud, no_wait)) as verifier:
        system = Speculative(edge, verifier, draft=draft, pipelined=pipelined, max_tokens=most)
        return system.ask(PROMPT)


@given(
    seed=st.integers(0, 200),
    percent=st.sampled_from([0, 50, 80, 95, 100]),
    one_in=st.sampled_from([0, 5, 23]),
    draft=st.integers(1, 17),
    pipelined=st.booleans(),
    most=st.integers(1, 40),
    rewinds=st.sampled_from(["anywhere", "checkpoints", "no"]),
    cut=st.booleans(),
)
def test_nothing_is_lost(
    seed: int,
    percent: int,
    one_in: int,
    draft: int,
    pipelined: bool,
    most: int,
    rewinds: str,
    cut: bool,
) -> None:
    script = ending(noise(seed), one_in)
    context = 16 if cut else 4096
    cloud = ScriptedEdge(script, context=context)
    abilities = EdgeAbilities(slots=4, rewinds=rewinds)  # pyright: ignore[reportArgumentType]
    edge = ScriptedEdge(agreeing(script, percent, seed), abilities=abilities)
    found = speculated(edge, cloud, draft=draft, pipelined=pipelined, most=most)
    room = min(most, context - len(PROMPT) + 1)
    assert list(found.ids) == alone(cloud, PROMPT, room)
    assert len(found.margins) == len(found.shown) == len(found.ids)
    assert all(before <= after for before, after in pairwise(found.shown))
    assert found.accepted + found.added == len(found.ids)
    assert found.accepted <= found.drafted
    assert all(request.written == 1 for request in found.requests)
    assert (edge.sessions, cloud.sessions) == (0, 0)


@pytest.mark.parametrize("pipelined", [False, True])
def test_what_an_edge_that_always_agrees_takes(pipelined: bool) -> None:
    script = replying("blue and wide.", prompt="sky: ")
    edge, cloud = ScriptedEdge(script), ScriptedEdge(script)
    found = speculated(edge, cloud, draft=4, pipelined=pipelined, most=100)
    assert bytes(found.ids[:-1]) == b"blue and wide."
    assert found.ids[-1] == EOS
    assert found.corrected == 0
    if not pipelined:
        # The cloud's first token, then four drafted and one of the cloud's a round: b, lue a+n, ...
        assert (found.rounds, found.drafted, found.added) == (4, 12, 3)
        # The prompt, then each token but whole drafts' last in passes of their own.
        assert (found.decodes, found.positions) == (13, len(PROMPT) + 14)


def test_each_request_says_what_a_provider_would_bill() -> None:
    script = replying("blue and wide.", prompt="sky: ")
    wrong = replying("blue Xnd wide.", prompt="sky: ")
    found = speculated(
        ScriptedEdge(wrong), ScriptedEdge(script), draft=4, pipelined=False, most=100
    )
    first, second, third = found.requests[:3]
    told = (first.prompt, first.seen, first.cached, first.computed)
    assert told == (5, 0, 0, 5)
    # The prompt, the cloud's "b" and the draft "lue "; it wrote the "a" that the next one has.
    assert (second.prompt, second.seen) == (10, 6)
    assert (second.cached, second.computed) == (5, 5)
    assert (third.prompt, third.seen, third.computed) == (15, 11, 5)
    assert found.traffic is None


def test_ids_that_an_earlier_request_had_are_seen_though_they_were_rejected() -> None:
    script = replying("blue", prompt="sky: ")
    wrong = replying("bXue", prompt="sky: ")
    found = speculated(
        ScriptedEdge(wrong), ScriptedEdge(script), draft=3, pipelined=False, most=100
    )
    # Sent "sky: bX..", then "sky: bl": what both begin with.
    assert found.requests[2].seen == 6


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_token_is_shown_once_it_is_verified(pipelined: bool) -> None:
    """Timed against the replay of the same agreement."""
    step, trip = 0.02, 0.1
    script, wrong = (replying(text, prompt="sky: ") for text in ("0123456789", "0123X5678XYZXYZ"))
    edge = PacedEdge(ScriptedEdge(wrong), Pace((1, 5), (step, step)))
    with closing(LocalVerifier(ScriptedEdge(script), lambda _: trip)) as verifier:
        system = Speculative(edge, verifier, draft=3, pipelined=pipelined, max_tokens=50)
        found = system.ask(PROMPT)
    told = computed_time(
        [True, True, True, True, False, True, True, True, True, False, False],
        draft=3,
        pipelined=pipelined,
        edge_step=step,
        round_trip=trip,
        verify=0,
        edge_prompt=step,
    )
    assert found.shown[0] >= trip
    assert told - 0.005 <= found.shown[-1] < told + 1.0


def test_many_drafts_fly_at_once_when_pipelined() -> None:
    text = "a" * 40
    script = replying(text, prompt="sky: ")
    trips = 0.5
    with closing(LocalVerifier(ScriptedEdge(script), lambda _: trips)) as verifier:
        system = Speculative(
            ScriptedEdge(script), verifier, draft=4, pipelined=True, max_tokens=100
        )
        begun = time.monotonic()
        found = system.ask(PROMPT)
    assert len(found.ids) == 41
    assert len(found.requests) == 12
    assert time.monotonic() - begun < 12 * trips


def test_the_real_pair_writes_what_the_cloud_alone_writes() -> None:
    """Where they part the cloud itself was undecided: two tokens almost as likely."""
    with LlamaModel(bundled("edge"), threads=1) as edge, ExitStack() as stack:
        cloud = stack.enter_context(LlamaModel(bundled("cloud"), threads=1, slots=2))
        verifier = stack.enter_context(closing(LocalVerifier(cloud, no_wait)))
        for draft, pipelined in ((4, False), (4, True)):
            system: MeasuredSystem = Speculative(
                edge, verifier, draft=draft, pipelined=pipelined, max_tokens=64
            )
            for question in pocketqa().questions[:5]:
                prompt = question_ids(edge.tokenizer, question)
                assert isinstance(system, Speculative)
                found, cloud_ids = system.ask(prompt), alone(cloud, prompt, 64)
                parted = common_prefix(found.ids, cloud_ids)
                assert len(found.ids) == len(cloud_ids) == parted or (
                    found.margins[parted] < NEAR_TIE
                )
        answer = system.answer(pocketqa().questions[0])
    outcome = answer.outcome
    assert outcome.right
    assert outcome.computed == sum(request.computed or 0 for request in answer.requests)
    assert 0 < answer.ttft <= outcome.seconds
    assert 0 < answer.accepted <= answer.drafted
    assert answer.gap <= outcome.seconds
    assert 0 < outcome.consults <= len(answer.requests)


class _Lying:
    """A verifier that says what it is told to."""

    context = None
    traffic = None

    def __init__(self, reply: Verified | CloudError) -> None:
        self._reply = reply
        self.closed = False

    def check(self, tokenizer: Tokenizer) -> None:
        pass

    def open(self) -> "_Lying":
        return self

    def verify(self, ids: Sequence[int], draft: Sequence[int]) -> "Future[Verified]":
        told: Future[Verified] = Future()
        if isinstance(self._reply, CloudError):
            told.set_exception(self._reply)
        else:
            told.set_result(self._reply)
        return told

    def close(self) -> None:
        self.closed = True


def says(accepted: int, token: int, margins: int = 1) -> Verified:
    request = CloudRequest(prompt=1, seen=0, written=1)
    return Verified(accepted, token, (1.0,) * margins, (request,), 0.0)


LIES = [
    (says(1, 97, 2), "accepted 1 tokens of a draft of 0"),
    (says(-1, 97, 0), "accepted -1 tokens"),
    (says(0, SIZE), "outside 0 to 257"),
    (says(0, -1), "outside 0 to 257"),
    (says(0, 97, 2), "margins"),
]


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(("lie", "said"), LIES)
def test_a_reply_that_cannot_be_is_refused(lie: Verified, said: str, pipelined: bool) -> None:
    edge, verifier = ScriptedEdge(noise()), _Lying(lie)
    system = Speculative(edge, verifier, draft=2, pipelined=pipelined, max_tokens=9)
    with pytest.raises(CloudProtocolError, match=said):
        system.ask(PROMPT)
    assert verifier.closed
    assert edge.sessions == 0


def test_a_verifier_that_fails_ends_the_answer() -> None:
    edge = ScriptedEdge(noise())
    system = Speculative(
        edge, _Lying(CloudUnavailable("gone")), draft=2, pipelined=True, max_tokens=9
    )
    with pytest.raises(CloudUnavailable, match="gone"):
        system.ask(PROMPT)
    assert edge.sessions == 0


def test_a_model_that_fails_is_a_cloud_error() -> None:
    taken = ScriptedEdge(noise(), abilities=EdgeAbilities(slots=1))
    held = taken.session()
    with pytest.raises(CloudError, match="slots"):
        speculated(ScriptedEdge(noise()), taken, draft=2, pipelined=False, most=9)
    held.close()


@pytest.fixture
def verifier() -> Iterator[LocalVerifier]:
    with closing(LocalVerifier(ScriptedEdge(noise(), context=8), no_wait)) as made:
        yield made


def test_models_of_two_vocabularies_are_refused(verifier: LocalVerifier) -> None:
    edge = ScriptedEdge(noise(), tokenizer=ByteTokenizer("<stop>"))
    with pytest.raises(VocabularyMismatch, match="one family"):
        Speculative(edge, verifier, draft=2, pipelined=False, max_tokens=9)


def test_drafts_and_answers_of_nothing_are_refused(verifier: LocalVerifier) -> None:
    for draft, most in ((0, 9), (2, 0)):
        with pytest.raises(UsageError, match="at least 1 token"):
            Speculative(
                ScriptedEdge(noise()), verifier, draft=draft, pipelined=True, max_tokens=most
            )


def test_a_prompt_without_room_for_an_answer_is_refused(verifier: LocalVerifier) -> None:
    edge = ScriptedEdge(noise())
    system = Speculative(edge, verifier, draft=2, pipelined=False, max_tokens=9)
    with pytest.raises(ContextOverflow, match="no room"):
        system.ask(list(range(9)))


def test_a_verifier_that_was_closed_says_so() -> None:
    made = LocalVerifier(ScriptedEdge(noise()), no_wait)
    session = made.open()
    made.close()
    with pytest.raises(CloudUnavailable, match="closed"):
        session.verify([1], [2])


def test_margins_are_the_clouds_lead() -> None:
    def script(ids: Sequence[int]) -> Floats:
        logits = np.zeros(SIZE, np.float32)
        logits[[65, 66]] = 3.0, 2.0
        return logits

    cloud = ScriptedEdge(script)
    found = speculated(ScriptedEdge(noise()), cloud, draft=2, pipelined=False, most=4)
    assert found.margins == pytest.approx([1.0] * 4)
