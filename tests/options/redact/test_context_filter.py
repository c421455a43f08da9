"""What an adapter's cloud gets to see: placeholders, or nothing at all."""

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal
from unicodedata import normalize

import msgspec
import pytest

from benchmarks.redaction import KNOWN, OWN, framed
from edgewise.cloud.adapter.ids import Adapter, adapted
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import connect
from edgewise.cloud.record import SentRecord
from edgewise.cloud.registry import BY_TEXT
from edgewise.completion import Completion
from edgewise.errors import NothingUsable, UsageError
from edgewise.events import Consult, Event, Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.opening import context_filter
from edgewise.options.redact.normal import Normal
from edgewise.pair import Pair
from edgewise.prompts import Message, Prompt, prompt_of
from edgewise.routers.base import Router
from edgewise.routers.untrained import Constant, MaxProb, Random
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, Script, ScriptedEdge, replying
from tests.cloud.recording import Recorder, ids_of, recording
from tests.doubles.completing import completing
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.scripted_text import ScriptedText
from tests.gateway.running import gateway

EDGE, OWN_IDS = ByteTokenizer(), ByteTokenizer("<other>")
ASKED = "Write to anna@b.example: "
TOLD = "Write to <EMAIL_1>: "


def adapter(script: Script, **shown: str) -> tuple[Adapter, ScriptedCloud]:
    cloud = ScriptedCloud(script, tokenizer=OWN_IDS)
    model = adapted(cloud, EDGE, OWN_IDS, context_filter(Settings(**shown)))  # type: ignore[arg-type]
    assert isinstance(model, Adapter)
    return model, cloud


def ask(model: Adapter, answer: str, n: int = 1, asked: str | Prompt = ASKED) -> Completion:
    prompt = asked if isinstance(asked, Prompt) else Prompt(tuple(asked.encode()))
    with closing(model.open(prompt)) as session:
        return session.ask(ConsultRequest([*prompt.ids, *answer.encode()], n, 20)).result(60)


def seen(cloud: ScriptedCloud) -> list[str]:
    return [bytes(ids).decode() for ids, _ in cloud.asks]


def test_the_cloud_reads_and_writes_placeholders() -> None:
    model, cloud = adapter(replying("mail to <EMAIL_1>, now", prompt=TOLD), redact="email")
    assert bytes(ask(model, "mail to").ids).decode() == " anna@b.example"
    assert bytes(ask(model, "mail to anna@b.example").ids).decode() == ","
    assert all(one.startswith(TOLD) for one in seen(cloud))
    assert not any("anna" in one for one in seen(cloud))
    # Asked for more until the placeholder is whole, which is one word.
    assert len(cloud.asks) > 2


def test_what_stands_for_nothing_is_dropped() -> None:
    for reply in ("mail to <EMAIL_7> now", "mail to [EMAIL] now", "mail to EMAIL_1 now"):
        model, _ = adapter(replying(reply, prompt=TOLD), redact="email")
        with pytest.raises(NothingUsable):
            ask(model, "mail to")
    # What is whole before it is kept, however many words were asked for.
    for reply in ("so mail to <EMAIL_7> now", "so mail to <EMAIL"):
        for n in (2, 3, 9):
            model, _ = adapter(replying(reply, prompt=TOLD), redact="email")
            completion = ask(model, "so", n)
            assert (bytes(completion.ids).decode(), completion.stopped) == (" mail to", False)


def answered(
    model: Adapter,
    answer: str,
    asked: str = ASKED,
    *,
    router: Router | None = None,
    unsure: Sequence[int] = (),
    speculate: int = 0,
    on_cloud_error: Literal["edge", "raise"] = "edge",
) -> list[Event]:
    """The events of an answer whose every token the router wants of the cloud, unless told."""
    decoder = Decoder(
        ScriptedEdge(replying(answer, prompt=asked, unsure=unsure)),
        router=router or Constant(1.0),
        policy=Policy(threshold=0.5, speculate=speculate, on_cloud_error=on_cloud_error),
        cloud=model,
    )
    with decoder.stream(Prompt(tuple(asked.encode())), max_tokens=60) as events:
        return list(events)


def reasons(events: list[Event]) -> list[str]:
    return [one.reason for one in events if isinstance(one, Token)]


@pytest.mark.parametrize("ahead", [0, 8])
def test_half_a_private_word_waits(ahead: int) -> None:
    said = "it: anna@b.example ok"
    model, cloud = adapter(replying("it: <EMAIL_1> ok", prompt=TOLD), redact="email")
    unsure = said.index("nna")
    events = answered(model, said, router=MaxProb(), unsure=[unsure], speculate=ahead)
    assert "".join(one.text for one in events if isinstance(one, Token)) == said
    waited = [one.index for one in events if isinstance(one, Token) and one.reason == "mid_word"]
    # Asked where the word is whole, not before.
    assert waited == list(range(unsure, waited[-1] + 1))
    assert said[: waited[-1] + 1].endswith("anna@b.example")
    assert reasons(events)[waited[-1] + 1] == "critical"
    assert not any("anna" in one for one in seen(cloud))


def test_a_word_that_begins_like_a_private_one_ends_no_answer_of_the_cloud_alone() -> None:
    """Seen: "... is in" ended the answer where an address was info@b.example."""
    asked, told = "Write to info@b.example: ", "Write to <EMAIL_1>: "
    # The cloud's sixteen words of a consult end with "in".
    said = "and so it is in the end what you see of it that all is in the middle of it, ok"
    model, cloud = adapter(replying(said, prompt=told), redact="email")
    decoder = Decoder(
        ScriptedEdge(replying(said, prompt=asked)),
        router=Constant(0.0),
        policy=Policy(on_cloud_error="raise").cloud_alone(),
        cloud=model,
    )
    answer = decoder.generate(Prompt(tuple(asked.encode())), max_tokens=len(said))
    assert answer.text == said
    by_edge = "".join(one.text for one in answer.tokens if one.source == "edge")
    # So much shows that it is another word, and the cloud goes on.
    assert by_edge == " t"
    assert not any(one.endswith("in") for one in seen(cloud))


@pytest.mark.parametrize("ahead", [0, 8])
def test_a_local_class_opens_no_session(ahead: int) -> None:
    model, cloud = adapter(replying("", prompt=""), redact="email=local")
    events = answered(model, "so it is.", speculate=ahead, on_cloud_error="raise")
    assert cloud.opened == 0
    assert set(reasons(events)) == {"below_threshold"}
    # In the answer: from there on.
    model, cloud = adapter(completing("so x@y.example it is", prompt="Q: "), redact="email=local")
    said = "so x@y.example it is"
    events = answered(model, said, "Q: ", speculate=ahead, on_cloud_error="raise")
    assert reasons(events)[-4:] == ["blocked"] * 4
    assert not any("x@y.example" in one for one in seen(cloud))
    assert not any(one.outcome != "answered" for one in events if isinstance(one, Consult))


def test_a_detector_that_fails_leaves_the_answer_to_the_edge(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: object, text: str) -> Iterator[None]:
        raise RuntimeError("no model")

    monkeypatch.setattr("edgewise.options.redact.detectors.Email.find", fails)
    model, cloud = adapter(replying("", prompt=""), redact="email")
    with caplog.at_level(logging.WARNING):
        events = answered(model, "so it is.", on_cloud_error="raise")
    text = "".join(one.text for one in events if isinstance(one, Token))
    assert text == "so it is."
    assert set(reasons(events)) == {"blocked"}
    assert cloud.opened == 0
    assert len(caplog.messages) == 1


PLANTED = 500


def planted(draw: random.Random) -> list[tuple[str, str]]:
    """Values of the exact classes and of words, each in a sentence."""
    kinds = list(KNOWN)
    turns = [kinds[at % len(kinds)] for at in range(PLANTED)]
    values = [(kind, KNOWN[kind](draw)) for kind in turns]
    return [(value, framed(disguised(value, draw), kind, draw)[0]) for kind, value in values]


def disguised(value: str, draw: random.Random) -> str:
    """As another program, or somebody who knows the patterns, may write it."""
    at = draw.randrange(1, len(value))
    forms = [
        value,
        normalize("NFD", value),
        value.replace("@", "%40"),
        f"{value[:at]}\u00ad{value[at:]}",
        f"{value[:at]}\u200b\u2060{value[at:]}",
        "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in value),
    ]
    return draw.choice(forms)


@pytest.mark.parametrize(
    "far",
    [
        "chat",
        *[
            pytest.param(name, marks=pytest.mark.deep)
            for name in ("llama-server", "gateway", "llama-server-text")
        ],
    ],
)
def test_no_planted_private_word_crosses_the_socket(tmp_path: Path, far: str) -> None:
    """Neither in messages, nor in the answer that repeats them, nor in what is sent ahead."""
    draw = random.Random(17)
    values = planted(draw)
    with ExitStack() as stack:
        engine = stack.enter_context(closing(_far(far)))
        target = engine.url
        if far == "gateway":
            target = stack.enter_context(gateway([engine.url])).url
        recorder = stack.enter_context(recording(target))
        (tmp_path / "own").write_text("\n".join(OWN))
        shown = context_filter(Settings(redact=f"on,@{tmp_path / 'own'}"))
        model = connect(recorder.url, EDGE, engine=far, context_filter=shown)
        stack.callback(model.close)
        consults = 0
        for at in range(0, PLANTED, 25):
            some = values[at : at + 25]
            messages = [Message("user", "\n".join(line for _, line in some))]
            again = [disguised(value, draw) for value, _ in draw.sample(some, 4)]
            answer = " ".join(f"then {value} again" for value in again)
            consults += _answered(model, messages, answer, seed=at)
        assert consults > 30
        written = _text(recorder)
        crossed = written + Normal(written).text
    assert len(crossed) > 10_000
    assert "<SECRET_1>" in crossed
    leaked = {value for value, _ in values if value in crossed or value.lower() in crossed.lower()}
    assert leaked == set()


def _far(kind: str) -> ScriptedEngine | ScriptedText:
    return ScriptedText(kind) if kind in BY_TEXT else ScriptedEngine()


def _answered(model: CloudModel, messages: list[Message], answer: str, *, seed: int) -> int:
    edge = ScriptedEdge(replying(answer, prompt=messages[0].content))
    decoder = Decoder(
        edge,
        router=Random(seed),
        policy=Policy(threshold=0.98, speculate=4, deadline=60.0),
        cloud=model,
        record=SentRecord(),
    )
    with decoder.stream(prompt_of(EDGE, messages), max_tokens=len(answer.encode())) as events:
        return collect(events).usage.cloud_calls


def _text(recorder: Recorder) -> str:
    """All that crossed: bodies as they are, what their ids spell, and their texts unescaped."""
    told = list[bytes]()
    for message in recorder.messages:
        ids = ids_of(message)
        told += [message, bytes(one for one in ids if isinstance(one, int) and one < 256)]
        told += [text.encode() for text in _texts(message)]
    return b"\n".join(told).decode("utf-8", "replace")


def _texts(message: bytes) -> Iterator[str]:
    """All strings of a JSON body; a gateway's frames have none."""
    try:
        found = [msgspec.json.decode(message)]
    except msgspec.DecodeError:
        return
    while found:
        match found.pop():
            case str(text):
                yield text
            case dict(fields):
                found += fields.values()
            case list(items):
                found += items
            case _:
                pass


def test_settings_reach_the_adapter() -> None:
    cloud = ScriptedCloud(replying("so", prompt=""))
    with Pair(ScriptedEdge(replying("so", prompt="")), cloud=cloud, redact="email") as pair:
        assert isinstance(pair.cloud, Adapter)
        assert "redacted: email" in pair.cloud.identity()
        own = pair.cloud
        with pytest.raises(UsageError, match="already adapted"):
            Pair(ScriptedEdge(replying("so", prompt="")), cloud=own, redact="ip")
    with Pair(ScriptedEdge(replying("so", prompt="")), cloud="none", redact="email") as pair:
        assert pair.cloud is None
