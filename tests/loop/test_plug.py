"""An answer that is cut off from the cloud: the edge goes on, and nobody else notices."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.addresses import bundled
from edgewise.cloud.late import LateCloud
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudUnavailable
from edgewise.events import Finished, Token
from edgewise.loop.breaker import FAILURES, FIRST_PAUSE, Breaker
from edgewise.loop.decoder import Decoder
from edgewise.loop.plug import Plug
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.constant import Constant
from edgewise.routers.uncertainty import Entropy
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise
from edgewise_lab.evaluation.systems import question_prompt
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.held_cloud import HeldCloud

IDS = tuple(b"Q: sky? A:")
TOKENS = 12


def pair(
    cloud: ScriptedCloud, plug: Plug, policy: Policy, breaker: Breaker | None = None
) -> Decoder:
    return Decoder(
        ScriptedEdge(noise(1)),
        router=Constant(1.0),
        policy=policy,
        cloud=plug.cloud(cloud),
        breaker=plug.breaker(breaker or Breaker()),
    )


def cut_after(
    decoder: Decoder,
    plug: Plug,
    tokens: int,
    prompt: Prompt | tuple[int, ...],
    most: int,
    then: Callable[[], None] = lambda: None,
) -> list[Token]:
    """The answer's tokens, unplugged once so many are written."""

    def cut() -> None:
        if len(found) == tokens:
            plug.unplug()
            then()

    found: list[Token] = []
    cut()
    with decoder.stream(prompt, max_tokens=most) as events:
        for event in events:
            if isinstance(event, Token):
                found.append(event)
                cut()
    return found


def edge_alone(decoder: Decoder, ids: Sequence[int], most: int) -> list[int]:
    alone = Decoder(decoder.edge, router=decoder.router, policy=Policy(cloud_share=0.0))
    return [token.id for token in alone.generate(ids, max_tokens=most).tokens] if most else []


@pytest.mark.parametrize("tokens", range(TOKENS))
def test_unplugged_at_any_token_the_edge_goes_on_from_there(tokens: int) -> None:
    cloud, plug = ScriptedCloud(noise(2)), Plug()
    decoder = pair(cloud, plug, Policy(threshold=0.5))
    answer = cut_after(decoder, plug, tokens, IDS, TOKENS)
    sources = [token.source for token in answer]
    assert sources == ["cloud"] * tokens + ["edge"] * (len(answer) - tokens)
    assert len(answer) > tokens
    assert len(cloud.asks) == tokens
    written = [token.id for token in answer]
    ahead = edge_alone(decoder, [*IDS, *written[:tokens]], TOKENS - tokens)
    assert written[tokens:] == ahead
    # As for a cloud that is gone: three that fail, and then a pause.
    reasons = [token.reason for token in answer[tokens:]]
    left = max(0, len(reasons) - FAILURES)
    assert reasons == [*["unavailable"] * min(FAILURES, len(reasons)), *["circuit_open"] * left]


@given(
    seed=st.integers(0, 99),
    tokens=st.integers(0, TOKENS),
    span=st.integers(1, 3),
    ahead=st.sampled_from([0, 4]),
    share=st.sampled_from([None, 0.3, 0.8]),
)
def test_nothing_is_asked_after_the_cut(
    seed: int, tokens: int, span: int, ahead: int, share: float | None
) -> None:
    """Behind what had come by then the answer is the edge's own, whatever was under way."""
    cloud, plug = ScriptedCloud(noise(seed)), Plug()
    policy = Policy(threshold=0.4, span=span, run_ahead=ahead, cloud_share=share)
    late = LateCloud(cloud, lambda written, computed: 0.001)
    decoder = Decoder(
        ScriptedEdge(noise(seed + 1)),
        router=Entropy(),
        policy=policy,
        cloud=plug.cloud(late),
        breaker=plug.breaker(Breaker()),
    )
    asked: list[int] = []
    found = cut_after(decoder, plug, tokens, IDS, TOKENS, lambda: asked.append(len(cloud.asks)))
    assert asked in ([], [len(cloud.asks)])
    by_cloud = [token.index for token in found if token.source == "cloud"]
    alone = max([tokens, *(index + 1 for index in by_cloud)])
    written = [token.id for token in found]
    rest = written[alone:]
    assert not rest or rest == edge_alone(decoder, [*IDS, *written[:alone]], len(rest))


def test_a_consult_that_flies_fails_now_and_is_given_up() -> None:
    cloud, plug = HeldCloud(), Plug()
    decoder = pair(cloud, plug, Policy(threshold=0.5, deadline=600.0))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(decoder.generate, IDS, max_tokens=4)
        assert cloud.asked.wait(60)
        plug.unplug()
        tokens = answer.result(60).tokens
    assert [token.id for token in tokens] == edge_alone(decoder, IDS, 4)
    assert [token.reason for token in tokens][:FAILURES] == ["unavailable"] * FAILURES
    assert [future.cancelled() for future in cloud.flying] == [True]


def test_plugged_in_again_the_cloud_goes_on() -> None:
    cloud, plug = ScriptedCloud(noise(2)), Plug()
    decoder = pair(cloud, plug, Policy(threshold=0.5))
    plug.unplug()
    sources: list[str] = []
    with decoder.stream(IDS, max_tokens=TOKENS) as events:
        for event in events:
            if isinstance(event, Token):
                sources.append(event.source)
                # Before it is one failure too many.
                plug.plug()
    assert sources == ["edge"] + ["cloud"] * (TOKENS - 1)


def test_others_are_not_paused() -> None:
    shared, cloud = Breaker(), ScriptedCloud(noise(2))
    cut, whole = Plug(), Plug()
    unplugged = pair(cloud, cut, Policy(threshold=0.5), shared)
    cut_after(unplugged, cut, 2, IDS, TOKENS)
    assert not shared.is_open
    # Nor for one that was cut off while it waited for its turn.
    early = Plug()
    early.unplug()
    pair(cloud, early, Policy(threshold=0.5), shared).generate(IDS, max_tokens=TOKENS)
    assert not shared.is_open
    other = pair(cloud, whole, Policy(threshold=0.5), shared).generate(IDS, max_tokens=TOKENS)
    assert {token.source for token in other.tokens} == {"cloud"}


def test_before_the_cut_failures_are_everybodys() -> None:
    shared = Breaker()
    gone = ScriptedCloud(noise(2), fault=lambda ask: CloudUnavailable("gone"))
    pair(gone, Plug(), Policy(threshold=0.5), shared).generate(IDS, max_tokens=TOKENS)
    assert shared.is_open


def test_an_answer_that_is_cut_off_while_it_probes_leaves_the_probe_to_others() -> None:
    now = [0.0]
    shared, plug = Breaker(clock=lambda: now[0]), Plug()
    for _ in range(FAILURES):
        shared.failed()
    own = plug.breaker(shared)
    now[0] = FIRST_PAUSE
    assert own.allow()
    assert not shared.allow()
    plug.unplug()
    own.failed()
    assert shared.allow()
    shared.succeeded()
    assert not shared.is_open


def test_the_bundled_pair_goes_on_as_the_edge_does() -> None:
    edge, cloud = LlamaModel(bundled("edge")), LocalCloud(LlamaModel(bundled("cloud")))
    prompt = question_prompt(edge.tokenizer, pocketqa().questions[1])
    for tokens in (0, 3, 9):
        plug = Plug()
        decoder = Decoder(
            edge,
            router=Constant(1.0),
            policy=Policy(threshold=0.5, deadline=60.0),
            cloud=plug.cloud(cloud),
            breaker=plug.breaker(Breaker()),
        )
        answer = cut_after(decoder, plug, tokens, prompt, 64)
        sources = [token.source for token in answer]
        assert sources == ["cloud"] * tokens + ["edge"] * (len(answer) - tokens)
        written = [token.id for token in answer]
        assert written[tokens:] == edge_alone(decoder, [*prompt.ids, *written[:tokens]], 64)
    cloud.close()
    edge.close()


def test_the_end_says_what_failed() -> None:
    cloud, plug = ScriptedCloud(noise(2)), Plug()
    plug.unplug()
    events = list(pair(cloud, plug, Policy(threshold=0.5)).stream(IDS, max_tokens=TOKENS))
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.usage.cloud_tokens, end.usage.failed_calls) == (0, FAILURES)
    assert end.usage.wasted_tokens == 0
