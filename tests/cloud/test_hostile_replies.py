"""Whatever a cloud replies, an answer goes on: what goes wrong is a reason on the token."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import MOST_CANDIDATES, MOST_SECONDS, Completion, Outgoing
from edgewise.engines.http import seconds_of
from edgewise.errors import CloudProtocolError, CloudUnavailable
from edgewise.events import Candidate, Consult, Event, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import SIZE, ByteTokenizer, ScriptedEdge, replying
from tests.cloud.test_gateway_cloud import Telling
from tests.doubles.engine_dialects import DIALECTS, Dialect
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, Twisted
from tests.gateway.running import gateway

PROMPT, TEXT = "sky: ", "up"
IDS = list(PROMPT.encode())
LENGTH = len(PROMPT)
BEYOND = LENGTH + len(TEXT)
"""More ids than any consult of these answers sends."""

DEADLINE = 60.0
"""Longer than a test may take: nobody waits for a reply that came."""

BAD_IDS = ["-1", str(SIZE), "1000000", str(1 << 31), str(1 << 32), str(1 << 64), "9" * 400]
NO_INTS = ["1.0", "1e2", "1.5", "true", '"97"', "null", "[97]", "{}", "9" * 5000]
LOGPROBS = ["1", "0.5", "1e308", "1e400", "NaN", "Infinity", '"-1"', "true", "[]"]
COUNTS = ["-5", "-1", str(BEYOND), str(1 << 32), str(1 << 64), "1.5", '"1"', "true", "[]"]
SECONDS = ["-1", "1e308", "1e400", "NaN", '"1"', "true"]

GOOD = {"id": "97", "top": "97", "logprob": "-0.5", "top_logprob": "-0.5", "more": "", "names": ""}
GOOD |= {"cached": "1", "total": str(LENGTH), "computed": str(LENGTH - 1), "ms": "1.5"}
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
    *({"id": value} for value in BAD_IDS + NO_INTS),
    *({"top": value} for value in BAD_IDS + NO_INTS if value != "null"),
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
    b"<!doctype html><title>Sign in</title>",
    b'{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[{}]}}]}',
]


def said(form: str, kind: dict[str, str]) -> bytes:
    """A reply in a dialect, good but for what `kind` says."""
    words = GOOD | kind
    return re.sub(r"<(\w+)>", lambda found: words[found[1]], form).encode()


def answered(cloud: CloudModel) -> tuple[tuple[str, str, str, str | None], str | None]:
    """A whole answer that asks for every token: how it begins, and what is said of that."""
    edge = ScriptedEdge(replying(TEXT, prompt=PROMPT))
    policy = Policy(threshold=0.5, deadline=DEADLINE, speculate=0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
    events: list[Event] = list(decoder.stream(IDS, max_tokens=len(TEXT)))
    consult = next(one for one in events if isinstance(one, Consult))
    token = next(one for one in events if isinstance(one, Token))
    text = collect(iter(events)).text
    return (text, consult.outcome, token.source, token.reason), consult.message


def failed(reason: str) -> tuple[str, str, str, str]:
    """The edge's own answer."""
    return TEXT, reason, "edge", reason


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


@pytest.mark.deep
def test_every_bad_reply_is_a_failed_consult_and_the_answer_the_edges(way: Way) -> None:
    bodies = {str(kind)[:80]: said(way.form, kind) for kind in KINDS}
    bodies = {name: body for name, body in bodies.items() if body != said(way.form, {})}
    bodies |= {f"whole {body[:40]!r}": body for body in WHOLE}
    wrong: dict[str, object] = {}
    for name, body in bodies.items():
        way.say(body)
        told, why = answered(way.cloud)
        if told != failed("protocol"):
            wrong[name] = (told, why)
    assert wrong == {}
    assert len(bodies) > 60
    way.say(said(way.form, {}))
    assert answered(way.cloud)[0][0] == "aa"


WROTE = {"ids": [97], "logprobs": [-0.5], "stopped": False, "cached": 1, "computed": 1}
FRAME: dict[str, Any] = {**WROTE, "seconds": 0.1, "top": [[[97, -0.5]]]}
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
    wrong: dict[str, object] = {}
    with closing(Telling(FRAME)) as fake, closing(GatewayCloud(fake.url)) as cloud:
        cloud.check_vocabulary(ByteTokenizer())
        for kind in FRAMES:
            fake.fields = FRAME | kind
            told, why = answered(cloud)
            if told != failed("protocol"):
                wrong[str(kind)[:60]] = (told, why)
        assert wrong == {}
        fake.fields = FRAME
        assert answered(cloud)[0][0] == "aa"


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
    meter = {"cached": cached, "computed": computed, "engine_seconds": seconds}
    listed = tuple(tuple(Candidate(*pair) for pair in one) for one in top)
    completion = Completion(ids=ids, logprobs=logprobs, top=listed, **meter)
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


@pytest.fixture(params=DIALECTS)
def engine(request: pytest.FixtureRequest) -> Iterator[ScriptedEngine]:
    with closing(ScriptedEngine(dialect=request.param)) as made:
        yield made


def ending(reason: str) -> Twisted:
    return Twisted(lambda writing: msgspec.structs.replace(writing, ended=reason))


def replied(status: int, body: bytes = b"", **headers: str) -> Edited:
    return Edited(
        lambda _: body, status, {name.replace("_", "-"): headers[name] for name in headers}
    )


STREAM = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\ndata: [DONE]\n\n'
WRONG: dict[str, tuple[Misdeed, str]] = {
    "content filter": (ending("content_filter"), "rejected"),
    "tool call": (ending("tool_calls"), "rejected"),
    "broken off": (ending("abort"), "unavailable"),
    "a stream": (replied(200, STREAM, Content_Type="text/event-stream"), "protocol"),
    "HTML of a proxy": (replied(502, b"<html>Bad gateway</html>"), "unavailable"),
    "no room": (replied(429, b"slow down"), "unavailable"),
    "no room for long": (replied(429, Retry_After="3600"), "unavailable"),
    "the key expired": (replied(401), "refused"),
    "the model went": (replied(404, b'{"error": "model not found"}'), "rejected"),
    "not paid for": (replied(402), "rejected"),
    "too long a prompt": (replied(400, b"too long"), "rejected"),
    "a redirect": (replied(302, Location="/"), "rejected"),
    "not allowed": (replied(403), "refused"),
    "a fault of its own": (replied(500, b"oops"), "unavailable"),
    "a broken connection": ("reset", "unavailable"),
}
OF_SERVERS = {"content filter", "tool call", "broken off"}
"""What a llama-server never says."""


@pytest.mark.deep
def test_what_goes_wrong_is_a_reason_on_the_token(engine: ScriptedEngine) -> None:
    for what, (fault, reason) in WRONG.items():
        if what in OF_SERVERS and engine.speaks == "llama-server":
            continue
        with closing(open_engine(engine.url)) as cloud:
            engine.fault = lambda number: None
            cloud.check_vocabulary(ByteTokenizer())
            engine.fault = lambda number, fault=fault: fault
            told, why = answered(cloud)
        assert (what, told) == (what, failed(reason))
        assert "\n" not in str(why)


@pytest.mark.parametrize(
    ("status", "header", "busy", "sent"),
    [
        (429, "0.1", 1, 2),
        (503, "0.1", 1, 2),
        (429, "700", 9, 1),  # beyond the deadline it is not waited for
        (429, "0", 9, 2),  # it is asked again once
    ],
)
def test_who_says_when_is_asked_again_then(
    engine: ScriptedEngine, status: int, header: str, busy: int, sent: int
) -> None:
    """Both times are reported, with what they sent."""
    with closing(open_engine(engine.url)) as cloud:
        cloud.check_vocabulary(ByteTokenizer())
        first = engine.asked
        fault = replied(status, Retry_After=header)
        engine.fault = lambda number: fault if number < first + busy else None
        counts, begun = Outgoing(), time.monotonic()
        asked = cloud.open(Prompt(tuple(IDS))).ask(ConsultRequest(IDS, 1, 30, sent=counts))
        if busy == 1:
            assert asked.result().ids
            assert time.monotonic() - begun >= float(header)
        else:
            with pytest.raises(CloudUnavailable) as refused:
                asked.result()
            assert refused.value.retry_after == float(header)
        assert engine.asked == first + sent
        assert counts.ids == sent * len(IDS)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *[("0", 0.0), ("1", 1.0), (" 2.5 ", 2.5), ("120", 120.0)],
        *[(None, None), ("", None), ("soon", None), ("-1", None), ("1e9", None), ("nan", None)],
        *[("9" * 5000, None), ("١", None), ("\x00", None), ("Fri, 31 Dec 1999 23:59:59", None)],
    ],
)
def test_what_the_header_says(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds
