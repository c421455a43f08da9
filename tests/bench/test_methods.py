"""From the paper's method to ours, over one link: what each sends, and how they are taken apart."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from edgewise.addresses import bundled
from edgewise.edge.base import Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.errors import CloudUnavailable, UsageError
from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from edgewise_lab.bench.method_parts import (
    NAMES,
    MethodTimes,
    each_alone,
    each_left_out,
    ladder,
    ratio,
    take_apart,
)
from edgewise_lab.bench.methods import OURS, PAPER, TO_AN_ENGINE, EngineAt, Every, Method, Methods
from edgewise_lab.bench.paper_method import prose, served_at
from tests.gateway.running import gateway
from tests.llama_server_process import free_port, llama_server

TOKENS = 12
ALL = {variant.method for variant in [*ladder(), *each_alone(), *each_left_out()]}


@pytest.fixture(scope="module")
def methods() -> Iterator[Methods]:
    """The bundled pair, its cloud in a llama-server and behind a gateway as well."""
    with ExitStack() as stack:
        url = stack.enter_context(llama_server(bundled("cloud")))
        front = stack.enter_context(gateway([url])).url
        edge = stack.enter_context(LlamaModel(bundled("edge"), context=256, threads=1))
        served = served_at(url)._replace(gateway=front)
        quality = Quality(round_trip=0.01)
        yield stack.enter_context(Methods(edge, served, share=0.25, quality=quality))


def test_every_nth_token_is_asked_for() -> None:
    model = ScriptedEdge(replying("the sky is blue", prompt="sky: "))
    session = model.session(Needs.NOTHING)
    session.open(list(b"sky: "))
    scores: list[float] = []
    for _ in range(9):
        step = session.step()
        scores.append(Every(3).score(step))
        session.extend([step.proposed])
    session.close()
    assert scores == [float(position % 3 == 0) for position in range(5, 14)]


def test_a_ladder_leads_from_the_papers_method_to_ours() -> None:
    steps = ladder()
    assert (steps[0].method, steps[-1].method) == (PAPER, OURS)
    assert len(steps) == len(NAMES) + 1
    for before, step in pairwise(steps):
        assert step.other == before.method
        assert sum(step.method) == sum(before.method) + 1


def test_parts_alone_and_left_out() -> None:
    assert all(sum(one.method) == 1 and one.other == PAPER for one in each_alone())
    left_out = {one.name: one.method for one in each_left_out()}
    # A session is in ids, over a connection that stays: without these nothing is pushed.
    assert left_out["ours - token ids and pushes"] == Method(cache=True, kept=True, ahead=True)
    assert left_out["ours - pushes"] == TO_AN_ENGINE
    assert left_out["ours - KV cache on the device"].pushes


def test_every_method_answers_and_is_measured(methods: Methods) -> None:
    done: list[None] = []
    tokenizer = methods.decoder(None).edge.tokenizer
    found = take_apart(
        methods,
        [None, *ALL],
        lambda number: prose(tokenizer, 24, number),
        tokens=TOKENS,
        rounds=2,
        done=lambda: done.append(None),
    )
    assert found.keys() == {None, *ALL}
    assert len(done) == 2 * len(found)
    assert found[None].consults == found[None].up == 0
    for method in ALL:
        one = found[method]
        assert len(one.seconds) == 2
        assert one.consults >= 2
        assert 0 <= one.changed <= one.consults
        # In text the engine's meter counts other tokens.
        assert (one.computed is not None) == method.ids
        assert one.up > 0


def test_only_new_ids_go_to_a_gateway(methods: Methods) -> None:
    tokenizer = methods.decoder(None).edge.tokenizer
    wanted = [PAPER, OURS, TO_AN_ENGINE]
    found = take_apart(
        methods, wanted, lambda number: prose(tokenizer, 64, number), tokens=TOKENS, rounds=1
    )
    assert found[OURS].up < found[PAPER].up
    assert found[OURS].up < found[TO_AN_ENGINE].up


@pytest.mark.parametrize("method", [Method(cache=True), Method(cache=True, ids=True)])
def test_without_a_kept_connection_each_consult_makes_one(methods: Methods, method: Method) -> None:
    prompt = prose(methods.decoder(None).edge.tokenizer, 24)
    decoder = methods.decoder(method)
    before = methods.to_engine.connections
    answer = decoder.generate(prompt, max_tokens=TOKENS)
    assert methods.to_engine.connections - before == answer.usage.cloud_calls


def test_a_ratio_goes_round_by_round() -> None:
    def made(*seconds: float) -> MethodTimes:
        return MethodTimes(seconds=seconds, up=0.0, computed=None, consults=1, changed=0)

    assert ratio(made(2.0, 4.0, 9.0), made(1.0, 4.0, 3.0)) == (2.0, 1.0, 3.0)
    assert made(3.0, 1.0, 2.0).median == 2.0


def test_prompts_with_numbers_begin_differently() -> None:
    whole = prose(ByteTokenizer(), 2000)
    assert len(whole) == 2000
    one, other = (prose(ByteTokenizer(), 100, number) for number in (3, 7))
    assert (len(one), one[0] != other[0], one[1:] == other[1:]) == (100, True, True)


def test_nothing_is_pushed_without_a_gateway() -> None:
    with llama_server(bundled("cloud")) as url, LlamaModel(bundled("edge"), threads=1) as edge:
        served = served_at(url)
        with (
            Methods(edge, served, share=0.25, quality=Quality()) as plain,
            pytest.raises(UsageError, match="put a gateway"),
        ):
            plain.decoder(OURS)


def test_links_are_closed_where_there_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Link] = []
    close = Link.close
    monkeypatch.setattr(Link, "close", lambda self: (closed.append(self), close(self)))
    served = EngineAt(f"http://127.0.0.1:{free_port()}", LlamaServerEngine)
    edge = ScriptedEdge(replying("x", prompt=""))
    with pytest.raises(CloudUnavailable):
        Methods(edge, served, share=0.5, quality=Quality())
    assert len(closed) == 1


def test_an_engine_that_goes_away_ends_the_answer(methods: Methods) -> None:
    decoder = methods.decoder(PAPER)
    methods.to_engine.refuse()
    try:
        with pytest.raises(CloudUnavailable):
            decoder.generate(prose(decoder.edge.tokenizer, 24), max_tokens=TOKENS)
    finally:
        methods.to_engine.restore()
