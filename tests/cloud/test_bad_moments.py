"""Every dialect: what goes wrong is a reason on the token, and the answer goes on."""

import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.completion import Outgoing
from edgewise.engines.http import seconds_of
from edgewise.errors import CloudUnavailable
from edgewise.events import Consult, Event, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, replying
from tests.doubles.engine_dialects import DIALECTS, Writing
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, Twisted

PROMPT, TEXT = "sky: ", "blue"
IDS = list(PROMPT.encode())


@pytest.fixture(params=DIALECTS)
def engine(request: pytest.FixtureRequest) -> Iterator[ScriptedEngine]:
    made = ScriptedEngine(dialect=request.param)
    yield made
    made.close()


def answered(
    engine: ScriptedEngine, fault: Misdeed, *, first: int = 1 << 30, deadline: float = 60.0
) -> tuple[str, list[Consult], list[Token]]:
    """A whole answer whose first consults go wrong, with every token asked for."""
    with closing(open_engine(engine.url)) as cloud:
        cloud.check_vocabulary(ByteTokenizer())
        begun = engine.asked
        engine.fault = lambda number: fault if number < begun + first else None
        edge = ScriptedEdge(replying(TEXT, prompt=PROMPT))
        policy = Policy(threshold=0.5, deadline=deadline, speculate=0)
        decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
        events: list[Event] = list(decoder.stream(IDS, max_tokens=len(TEXT)))
    consults = [one for one in events if isinstance(one, Consult)]
    tokens = [one for one in events if isinstance(one, Token)]
    return collect(iter(events)).text, consults, tokens


def ending(reason: str) -> Twisted:
    def how(writing: Writing) -> Writing:
        return msgspec.structs.replace(writing, ended=reason)

    return Twisted(how)


TOOL_CALL = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "rm", "arguments": "{}"}}],
            },
        }
    ]
}
STREAM = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\ndata: [DONE]\n\n'
WRONG: dict[str, tuple[Misdeed, str]] = {
    "content filter": (ending("content_filter"), "rejected"),
    "tool call": (ending("tool_calls"), "rejected"),
    "broken off": (ending("abort"), "unavailable"),
    "a message that calls a tool": (Edited(lambda _: msgspec.json.encode(TOOL_CALL)), "protocol"),
    "HTML": (Edited(lambda _: b"<!doctype html><title>Sign in</title>"), "protocol"),
    "HTML of a proxy": (Edited(lambda _: b"<html>Bad gateway</html>", status=502), "unavailable"),
    "a stream": (
        Edited(lambda _: STREAM, headers={"Content-Type": "text/event-stream"}),
        "protocol",
    ),
    "no room": (Edited(lambda _: b"slow down", status=429), "unavailable"),
    "no room for long": (
        Edited(lambda _: b"", status=429, headers={"Retry-After": "3600"}),
        "unavailable",
    ),
    "the key expired": (Edited(lambda _: b"", status=401), "refused"),
    "the model went": (Edited(lambda _: b'{"error": "model not found"}', status=404), "rejected"),
    "not paid for": (Edited(lambda _: b"", status=402), "rejected"),
    "too long a prompt": (Edited(lambda _: b"too long", status=400), "rejected"),
    "a redirect": (Edited(lambda _: b"", status=302, headers={"Location": "/"}), "rejected"),
    "not allowed": (Edited(lambda _: b"", status=403), "refused"),
    "a fault of its own": (Edited(lambda _: b"oops", status=500), "unavailable"),
    "no text": (Edited(lambda _: b"\xff\xfe"), "protocol"),
    "too much": (Edited(lambda _: b" " * (5 << 20)), "protocol"),
    "a broken connection": ("reset", "unavailable"),
}
OF_SERVERS = {"content filter", "tool call", "broken off"}
"""What a llama-server never says."""


@pytest.mark.parametrize("what", WRONG)
def test_it_is_a_reason_on_the_token_and_the_answer_goes_on(
    engine: ScriptedEngine, what: str
) -> None:
    fault, reason = WRONG[what]
    if what in OF_SERVERS and engine.speaks == "llama-server":
        pytest.skip("its replies have no such end")
    text, consults, tokens = answered(engine, fault)
    assert text == TEXT
    assert consults[0].outcome == reason
    assert tokens[0].source == "edge"
    assert tokens[0].reason == reason
    assert "\n" not in str(consults[0].message)


@pytest.mark.parametrize(
    ("status", "header", "busy", "sent"),
    [
        (429, "0.3", 1, 2),
        (503, "0.3", 1, 2),
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
        fault = Edited(lambda _: b"", status=status, headers={"Retry-After": header})
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
