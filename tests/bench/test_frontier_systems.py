"""Systems of the frontier, measured: the product's decoder and a streamed cloud, over a link."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.engine import LlamaServer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudError, CloudRejected, CloudUnavailable
from edgewise.prompts import Prompt
from edgewise.routers.untrained import MaxProb
from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from edgewise_lab.bench.frontier.billing import RecordedCloud
from edgewise_lab.bench.frontier.streamed import Streamed
from edgewise_lab.bench.frontier.timed import PairSystems, Timed
from edgewise_lab.bench.link import http_target
from edgewise_lab.bench.pace import Pace
from edgewise_lab.evaluation.systems import CloudAlone
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.doubles.scripted_engine import Edited, ScriptedEngine, Wire
from tests.llama_server_process import llama_server

PROMPT, TEXT, OTHER = "q0: ", "the sky is blue.", "the sea is blue."
UNSURE = (5, 12)
QUESTION = Question("0", "sky", PROMPT, r"^the sea", "regex", choices=None)


def pair(cloud: ScriptedCloud, *, speculate: int = 0, step: float = 0.0) -> Timed:
    model = ScriptedEdge(replying(TEXT, prompt=PROMPT, unsure=UNSURE))
    systems = PairSystems(model, cloud, 32, pace=Pace((1,), (step,)))
    return systems.pair(MaxProb(), 0.3, speculate)


def test_a_pair_says_all_that_its_answer_cost() -> None:
    found = pair(ScriptedCloud(replying(OTHER, prompt=PROMPT))).answer(QUESTION)
    assert (found.outcome.text, found.outcome.right) == ("the sey is blue.", False)
    first, second = found.requests
    start = len(PROMPT) + UNSURE[0]
    assert (first.prompt, first.seen, first.written) == (start, 0, 1)
    # What was sent and what came back, then what the edge wrote.
    assert (second.prompt, second.seen, second.written) == (start + 7, start + 1, 1)
    # A pass for each token, the prompt in the first of them.
    assert found.decodes == len(TEXT) + 1
    assert found.positions == len(PROMPT) + len(TEXT)
    assert 0 < found.ttft <= found.outcome.seconds
    assert (found.sent, found.received) == (None, None)


def test_consults_in_vain_are_requests_too() -> None:
    """At the first the cloud says otherwise, so what was guessed and asked after it is dropped."""
    cloud = ScriptedCloud(replying(OTHER, prompt=PROMPT), delay=0.2)
    found = pair(cloud, speculate=16, step=0.005).answer(QUESTION)
    assert found.outcome.wasted_tokens == 1
    assert len(found.requests) == len(cloud.asks) == 3
    assert [request.written for request in found.requests] == [1, 1, 1]
    assert found.decodes > len(TEXT) + 1
    # A guess's consult holds what was sent before it, and not what came for it.
    assert found.requests[1].seen == len(PROMPT) + UNSURE[0]


def test_a_cloud_that_does_not_stream_is_asked_in_spans_and_billed_as_one_request() -> None:
    text = "the sea is as blue as it ever was."
    cloud = ScriptedCloud(replying(text, prompt=PROMPT), delay=0.05)
    found = (
        PairSystems(ScriptedEdge(replying(TEXT, prompt=PROMPT)), cloud, 64).cloud().answer(QUESTION)
    )
    assert (found.outcome.text, found.outcome.right) == (text, True)
    assert len(cloud.asks) == found.outcome.consults == 3
    (request,) = found.requests
    assert (request.prompt, request.seen, request.written) == (len(PROMPT), 0, len(text) + 1)
    assert 0.05 <= found.ttft < found.outcome.seconds
    assert found.gap >= 0.05


def test_a_request_that_was_declined_is_none() -> None:
    def declined(ask: int) -> CloudError:
        error = CloudRejected("no")
        error.declined = True
        return error

    cloud = RecordedCloud(ScriptedCloud(replying(OTHER, prompt=PROMPT), fault=declined))
    session = cloud.open(Prompt((1, 2)))
    asked = session.ask(ConsultRequest([1, 2], 1, 30))
    assert isinstance(asked.exception(), CloudRejected)
    assert cloud.take() == ()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with llama_server(bundled("cloud")) as url:
        yield url


@contextmanager
def linked(engine: str, round_trip: float = 0.0) -> Iterator[tuple[LlamaModel, LlamaServer, Link]]:
    """The bundled edge, and the engine over a link."""
    with (
        LlamaModel(bundled("edge"), threads=1) as model,
        closing(Link(*http_target(engine), Quality(round_trip=round_trip))) as link,
        closing(LlamaServer(link.url)) as cloud,
    ):
        cloud.check_vocabulary(model.tokenizer)
        yield model, cloud, link


def test_a_real_engine_streams_its_answer_over_a_link(engine: str) -> None:
    task = pocketqa().first(3)
    with (
        linked(engine, 0.04) as (model, cloud, link),
        closing(Streamed(link.url, model.tokenizer, task.max_tokens)) as streamed,
    ):
        system = Timed(streamed, cloud=streamed, link=link)
        for question in task.questions:
            whole = CloudAlone(cloud, model.tokenizer, task.max_tokens).answer(question)
            found = system.answer(question)
            assert (found.outcome.text, found.outcome.right) == (whole.text, whole.right)
            assert found.outcome.output_tokens == whole.output_tokens
            assert 0.04 <= found.ttft < found.outcome.seconds
            (request,) = found.requests
            assert request.seen == 0
            assert request.computed is not None
            assert request.cached is not None
            assert request.cached + request.computed == request.prompt
            assert request.engine_seconds is not None
            assert (found.sent or 0) > request.prompt
            assert (found.received or 0) > len(found.outcome.text)


def test_bytes_of_a_pair_are_counted_on_the_link(engine: str) -> None:
    task = pocketqa().first(1)
    with linked(engine) as (model, cloud, link):
        systems = PairSystems(model, cloud, task.max_tokens, link=link)
        found = systems.pair(MaxProb(), 0.05, 0).answer(task.questions[0])
    assert found.requests
    assert (found.sent or 0) > 100 * len(found.requests)
    assert found.outcome.consults == len(found.requests)
    assert all(request.engine_seconds is not None for request in found.requests)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@contextmanager
def streamed(fault: Callable[[int], Wire | Edited]) -> Iterator[Timed]:
    """A cloud that streams from an engine with that `fault`."""
    with (
        closing(ScriptedEngine(dialect="vllm", fault=fault)) as engine,
        closing(Streamed(engine.url, ByteTokenizer(), 32, model="scripted")) as system,
    ):
        yield Timed(system, cloud=system)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (b"", "does not stream"),
        (b'data: {"choices":[{"text":"a"}]}\n\n', "broke"),
        (b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n', "of None tokens"),
        (b'data: {"choices":[{"text":7}]}\n\n', "of its form"),
        (b'data: {"error":{"message":"out of memory"}}\n\n', "failed within"),
        (b'data: {"choices":[{"text":"a"},{"text":"b"}]}\n\n', "2 choices"),
        (
            b'data: {"choices":[{"text":"a","finish_reason":"length"}],'
            b'"usage":{"prompt_tokens":4,"completion_tokens":999}}\n\n',
            "of 999 tokens",
        ),
        (
            b'data: {"choices":[{"text":"a","finish_reason":"length"}],'
            b'"usage":{"prompt_tokens":4000,"completion_tokens":1}}\n\n',
            "read 4000 tokens",
        ),
        (b"data: " + b"x" * (3 << 20), "more than an answer"),
    ],
)
def test_a_stream_that_is_none_is_an_error_in_a_sentence(reply: bytes, sentence: str) -> None:
    def fault(number: int) -> Wire | Edited:
        return Wire([HEAD + reply]) if reply else Edited()

    with streamed(fault) as system:
        with pytest.raises(CloudError, match=sentence) as raised:
            system.answer(QUESTION)
        assert str(raised.value).count("\n") == 0


def test_a_meter_may_come_in_an_event_of_its_own() -> None:
    """As vLLM's does, without a time of the engine's; comments keep a connection awake."""
    events = (
        b': awake\r\n\r\ndata: {"choices":[{"text":"the s","logprobs":null}],"usage":null}\r\n\r\n'
        b'data: {"choices":[{"text":"ea","finish_reason":"stop"}]}\r\n\r\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":8,'
        b'"prompt_tokens_details":{"cached_tokens":3}}}\r\n\r\ndata: [DONE]\r\n\r\n'
    )
    # Cut anywhere, with a pause between the pieces.
    pieces = [HEAD, events[:30], events[30:91], events[91:]]
    with streamed(lambda number: Wire(pieces, pause=0.05)) as system:
        found = system.answer(QUESTION)
    (request,) = found.requests
    assert (found.outcome.text, found.outcome.right) == ("the sea", True)
    assert (request.prompt, request.cached, request.computed, request.written) == (4, 3, 1, 8)
    assert request.engine_seconds is None
    assert found.outcome.seconds >= found.ttft >= 0.05


def test_a_connection_that_was_just_being_closed_is_made_anew() -> None:
    """As llama-server closes it behind a stream; one that is always closed is no engine."""
    whole = Wire(
        [
            HEAD,
            b'data: {"choices":[{"text":"the sea","finish_reason":"stop"}],',
            b'"usage":{"prompt_tokens":4,"completion_tokens":8}}\n\ndata: [DONE]\n\n',
        ]
    )
    asked: list[int] = []

    def hangs_up(number: int) -> Wire:
        asked.append(number)
        return Wire([]) if len(asked) in (1, 3, 4) else whole

    with streamed(hangs_up) as system:
        assert system.answer(QUESTION).outcome.text == "the sea"
        with pytest.raises(CloudUnavailable, match="broke off"):
            system.answer(QUESTION)
