"""Whatever a cloud replies, an answer goes on: each bad reply is a failed consult, `protocol`."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import open_engine
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import MOST_CANDIDATES, MOST_SECONDS, Completion
from edgewise.errors import CloudProtocolError
from edgewise.events import Candidate, Consult, Event
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import SIZE, ByteTokenizer, ScriptedEdge, replying
from edgewise.wire.protocol import Ask, FromDevice
from tests.cloud.test_gateway_cloud import FakeGateway, politely
from tests.doubles.engine_dialects import Dialect
from tests.doubles.scripted_engine import Edited, ScriptedEngine
from tests.gateway.running import gateway

PROMPT, TEXT = "sky: ", "blue"
LENGTH = len(PROMPT)
BEYOND = LENGTH + len(TEXT)
"""More ids than any consult of these answers sends."""

DEADLINE = 60.0
"""Longer than a test may take: nobody waits for a reply that came."""

IDS = ["-1", str(SIZE), "1000000", str(1 << 31), str(1 << 32), str(1 << 64), "9" * 400]
NO_INTS = ["1.0", "1e2", "1.5", "true", '"97"', "null", "[97]", "{}", "9" * 5000]
LOGPROBS = ["1", "0.5", "1e308", "1e400", "NaN", "Infinity", '"-1"', "true", "[]"]
COUNTS = ["-5", "-1", str(BEYOND), str(1 << 32), str(1 << 64), "1.5", '"1"', "true", "[]"]
SECONDS = ["-1", "1e308", "1e400", "NaN", '"1"', "true"]

GOOD = {
    "id": "97",
    "top": "97",
    "logprob": "-0.5",
    "top_logprob": "-0.5",
    "cached": "1",
    "total": str(LENGTH),
    "computed": str(LENGTH - 1),
    "ms": "1.5",
    "more": "",
}
LLAMA_SERVER = (
    '{"tokens":[<id><more>],"completion_probabilities":[{"id":<id>,"logprob":<logprob>,'
    '"top_logprobs":[{"id":<top>,"logprob":<top_logprob>}]}],"stop_type":"limit",'
    '"timings":{"cache_n":<cached>,"prompt_n":<computed>,"prompt_ms":<ms>,"predicted_ms":<ms>}}'
)
SGLANG = (
    '{"output_ids":[<id><more>],"meta_info":{"finish_reason":{"type":"length"},'
    '"prompt_tokens":<total>,"cached_tokens":<cached>,"e2e_latency":<ms>,'
    '"output_token_logprobs":[[<logprob>,<id>,null]],'
    '"output_top_logprobs":[[[<top_logprob>,<top>,null]]]}}'
)
VLLM = (
    '{"choices":[{"text":"","finish_reason":"length","logprobs":{"tokens":["token_id:<id>"<names>],'
    '"token_logprobs":[<logprob>],"top_logprobs":[{"token_id:<top>":<top_logprob>}]}}],'
    '"usage":{"prompt_tokens":<total>,"prompt_tokens_details":{"cached_tokens":<cached>}}}'
)

KINDS: list[dict[str, str]] = [
    *({"id": value} for value in IDS + NO_INTS),
    *({"top": value} for value in IDS + NO_INTS if value != "null"),
    *({"logprob": value} for value in LOGPROBS),
    *({"top_logprob": value} for value in ["1", "1e308", "1e400", "NaN", '"-1"', "true"]),
    *({"cached": value} for value in COUNTS),
    *({"computed": value, "total": value} for value in COUNTS if value != str(BEYOND)),
    *({"total": value, "computed": value} for value in [str(BEYOND + 1), str(1 << 40)]),
    *({"ms": value} for value in SECONDS),
    {"more": ",97", "names": ',"token_id:97"'},
    {"more": ",97" * 100_000, "names": ',"token_id:97"' * 100_000},
]

WHOLE = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b"{" * 100_000,
    b'{"x":' + b"[" * 100_000,
    b'{"tokens":[]}',
    b'{"tokens":[],"output_ids":[],"meta_info":{},"choices":[]}',
    b" " * (5 << 20),
]


def said(form: str, kind: dict[str, str]) -> bytes:
    """A reply in a dialect, good but for what `kind` says."""
    words = {"names": "", **GOOD, **kind}
    return re.sub(r"<(\w+)>", lambda found: words[found[1]], form).encode()


def answered(cloud: CloudModel) -> tuple[str, list[Consult]]:
    """The text of a whole answer that asks for every token, and its consults."""
    edge = ScriptedEdge(replying(TEXT, prompt=PROMPT))
    policy = Policy(threshold=0.5, deadline=DEADLINE, speculate=0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    events: list[Event] = list(decoder.stream(list(PROMPT.encode()), max_tokens=len(TEXT)))
    return collect(iter(events)).text, [one for one in events if isinstance(one, Consult)]


FORMS: dict[Dialect, str] = {"llama-server": LLAMA_SERVER, "sglang": SGLANG, "vllm": VLLM}


class Way(NamedTuple):
    """A cloud whose engine says what it is told, in the form of its dialect."""

    cloud: CloudModel
    engine: ScriptedEngine
    form: str

    def say(self, reply: bytes) -> None:
        self.engine.fault = lambda number: Edited(lambda _: reply)


@pytest.fixture(params=[*FORMS, "gateway"])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    dialect: Dialect = request.param if request.param in FORMS else "llama-server"
    with ExitStack() as stack:
        engine = stack.enter_context(closing(ScriptedEngine(dialect=dialect)))
        behind = request.param == "gateway"
        url = stack.enter_context(gateway([engine.url])).url if behind else engine.url
        cloud = stack.enter_context(closing(open_engine(url)))
        cloud.check_vocabulary(ByteTokenizer())
        yield Way(cloud, engine, FORMS[dialect])


def test_every_bad_reply_is_a_failed_consult_and_the_answer_the_edges(way: Way) -> None:
    bodies = {str(kind)[:80]: said(way.form, kind) for kind in KINDS}
    bodies = {name: body for name, body in bodies.items() if body != said(way.form, {})}
    bodies |= {f"whole {body[:40]!r}": body for body in WHOLE}
    wrong: dict[str, object] = {}
    for name, body in bodies.items():
        way.say(body)
        text, consults = answered(way.cloud)
        if text != TEXT or consults[0].outcome != "protocol":
            wrong[name] = (text, consults[0].outcome, consults[0].message)
    assert wrong == {}
    assert len(bodies) > 60
    way.say(said(way.form, {}))
    assert answered(way.cloud)[0] == "aaaa"


FRAME: dict[str, Any] = {
    "ids": [97],
    "logprobs": [-0.5],
    "stopped": False,
    "cached": 1,
    "computed": 1,
    "seconds": 0.1,
    "top": [[[97, -0.5]]],
}
NO_NUMBERS = [float("nan"), float("inf"), float("-inf"), "1", True, [], {}]
FRAMES: list[dict[str, Any]] = [
    *({"ids": [value]} for value in [-1, SIZE, 10**6, 1 << 31, 1 << 32, (1 << 64) - 1]),
    *({"ids": [value]} for value in [1.0, True, "97", None, [97]]),
    *({"top": [[[value, -0.5]]]} for value in [-1, SIZE, 1 << 31, (1 << 64) - 1, 1.0, "97"]),
    *({"top": [[[97, value]]]} for value in [*NO_NUMBERS, 0.5, 1e308, None]),
    *({"logprobs": [value]} for value in [*NO_NUMBERS, 0.5, 1e308]),
    *({name: value} for name in ("cached", "computed") for value in [-1, -5, BEYOND, 1 << 32, 1.5]),
    *({"seconds": value} for value in [*NO_NUMBERS, -1.0, 1e308, 3601.0]),
    {"ids": []},
    {"ids": [97, 97]},
    {"ids": [97, 97], "logprobs": [None, None], "top": []},
    {"ids": [97] * 100_000, "logprobs": [None] * 100_000, "top": []},
    {"logprobs": []},
    {"logprobs": [-0.5, -0.5]},
    {"top": [[], []]},
    {"top": [[[97, -0.5]] * 21]},
    {"top": [[[97, -0.5]] * 100_000]},
    {"stopped": 1},
]


def test_every_bad_frame_of_a_gateway_is_a_failed_consult() -> None:
    replied: list[dict[str, Any]] = [{}]

    async def say(socket: web.WebSocketResponse, frame: FromDevice) -> None:
        if not isinstance(frame, Ask):
            return await politely(socket, frame)
        values = (FRAME | replied[0]).values()
        return await socket.send_bytes(msgspec.msgpack.encode([17, frame.ask, *values]))

    fake = FakeGateway(say)
    cloud = GatewayCloud(fake.url)
    cloud.check_vocabulary(ByteTokenizer())
    assert answered(cloud)[0] == "aaaa"
    wrong: dict[str, object] = {}
    for kind in FRAMES:
        replied[0] = kind
        text, consults = answered(cloud)
        if text != TEXT or consults[0].outcome != "protocol":
            wrong[str(kind)[:60]] = (text, consults[0].outcome, consults[0].message)
    assert wrong == {}
    replied[0] = {}
    assert answered(cloud)[0] == "aaaa"
    cloud.close()
    fake.close()


integers = st.integers(-10, 1 << 70)
floats = st.floats() | integers
meters = st.none() | integers


@given(
    st.lists(integers, max_size=4).map(tuple),
    st.lists(st.none() | floats, max_size=4).map(tuple),
    st.lists(st.lists(st.tuples(integers, floats), max_size=25), max_size=3),
    meters,
    meters,
    st.none() | floats,
    st.integers(1, 4),
)
def test_what_passes_the_check_can_be_trusted(
    ids: Any, logprobs: Any, top: Any, cached: Any, computed: Any, seconds: Any, asked: int
) -> None:
    completion = Completion(
        ids=ids,
        logprobs=logprobs,
        top=tuple(tuple(Candidate(*pair) for pair in one) for one in top),
        cached=cached,
        computed=computed,
        engine_seconds=seconds,
    )
    try:
        completion.validate(asked=asked, prompt=LENGTH, size=SIZE)
    except CloudProtocolError:
        return
    assert 1 <= len(ids) == len(logprobs) <= asked
    assert all(type(token) is int and 0 <= token < SIZE for token in ids)
    assert all(logprob is None or -1e400 < logprob < 0.01 for logprob in logprobs)
    for one in completion.top:
        assert len(one) <= MOST_CANDIDATES
        assert all(0 <= candidate.id < SIZE for candidate in one)
    assert all(count is None or 0 <= count <= LENGTH for count in (cached, computed))
    assert seconds is None or 0 <= seconds <= MOST_SECONDS
    # And it can travel.
    assert msgspec.msgpack.encode(completion)
