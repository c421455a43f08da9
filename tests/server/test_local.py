"""What is local or private stays here, by whatever endpoint it comes back."""

import hashlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from html import escape
from typing import Any
from unicodedata import normalize

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from edgewise.cloud.adapter.ids import adapted
from edgewise.cloud.base import CloudModel
from edgewise.cloud.connect import open_engine
from edgewise.opening import context_filter
from edgewise.prompts import Message
from edgewise.server.local_messages import LocalMessages
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import SIZE, ByteTokenizer, ScriptedEdge, noise, replying
from edgewise.wire.protocol import Ask, Prefetch, from_device
from tests.cloud.recording import Recorder, ids_of, recording
from tests.doubles.engine_dialects import DIALECTS
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway
from tests.server.in_process import BODIES, CHAT, answering_of, app, at_port
from tests.tool_models import ToolTokenizer

MARK = {"edgewise": {"cloud": "none"}}
HEADER = {"X-Edgewise-Cloud": "none"}
CLOUDS = [*DIALECTS, "gateway"]


@contextmanager
def recorded(name: str) -> Iterator[tuple[CloudModel, Recorder]]:
    """A cloud, and what crosses to it."""
    behind = name == "gateway"
    with ExitStack() as stack:
        engine = ScriptedEngine(dialect="llama-server" if behind else name)  # type: ignore[arg-type]
        stack.callback(engine.close)
        target = stack.enter_context(gateway([engine.url])).url if behind else engine.url
        recorder = stack.enter_context(recording(target))
        cloud = stack.enter_context(closing(open_engine(recorder.url, engine=name)))
        yield cloud, recorder


@contextmanager
def watched(name: str) -> Iterator[tuple[TestClient, Recorder]]:
    """A server that asks for every token and speculates, and what crosses to its cloud."""
    edge = ScriptedEdge(noise(), context=1 << 14)
    with recorded(name) as (cloud, recorder), app(cloud, edge=edge, speculate=4) as client:
        recorder.forget()
        yield client, recorder


def crossed(recorder: Recorder) -> str:
    """The text of every id that was sent, a session's frames put together."""
    found: list[bytes] = []
    held: list[int] = []
    for message in recorder.messages:
        ids = ids_of(message)
        if message[:1] == b"{":
            found.append(message)
        else:
            frame = from_device(message)
            held = [*held[: frame.position], *ids] if isinstance(frame, Ask | Prefetch) else held
            ids = held
        if all(isinstance(one, int) for one in ids):
            found.append(bytes(one for one in ids if one < 256))
    return b"\n".join(found).decode("utf-8", "replace")


def turn(role: str, content: Any, *, local: bool = False) -> dict[str, Any]:
    return {"role": role, "content": content, **(MARK if local else {})}


def post(client: TestClient, messages: list[dict[str, Any]], **more: Any) -> Any:
    headers = more.pop("headers", {})
    body = {"model": "edgewise", "messages": messages, "max_tokens": 6, **more}
    return client.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("how", ["message", "field", "header"])
def test_nothing_of_a_local_message_crosses(name: str, how: str) -> None:
    with watched(name) as (client, recorder):
        opening = [turn("user", "open-1")]
        assert post(client, opening).status_code == 200
        opening.append(turn("assistant", "open-2"))
        said = [*opening, turn("user", "hidden-1", local=how == "message")]
        more = {"field": MARK, "header": {"headers": HEADER}}.get(how, {})
        found = post(client, said, **more).json()
        assert found["usage"]["edgewise"]["sent"]["bytes"] == 0
        message = found["choices"][0]["message"]
        assert message["edgewise"] == {"cloud": "none"}
        # As it came, the client's own mark forgotten; then as clients send it that know no fields.
        for answer in (message, turn("assistant", "hidden-2")):
            later = [*opening, turn("user", "hidden-1"), answer, turn("user", "hidden-3")]
            again = post(client, later).json()
            assert again["usage"]["edgewise"]["sent"]["bytes"] == 0
            assert again["choices"][0]["message"]["edgewise"] == {"cloud": "none"}
        # Whoever never came to the local message goes on.
        other = [*opening, turn("user", "open-3")]
        free = post(client, other).json()
        assert free["usage"]["edgewise"]["sent"]["bytes"] > 0
        assert "edgewise" not in free["choices"][0]["message"]
        text = crossed(recorder)
    assert "open-1" in text
    assert "open-3" in text
    assert "hidden" not in text


USED = {"type": "tool_use", "id": "x", "name": "a", "input": {}}
CALLED = {"type": "function_call", "call_id": "x", "name": "a", "arguments": "{}"}
ALL = {"edgewise": {"cloud": "all"}}
X = turn("user", "x")
UNHELD: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {"edgewise": {"cloud": "some"}}, "edgewise.cloud"),
    ("chat/completions", {"messages": [X | ALL]}, "messages.0.edgewise"),
    ("chat/completions", {"messages": [X | {"edgewise": {}}]}, "messages.0.edgewise"),
    ("chat/completions", {"headers": {"X-Edgewise-Cloud": "auto"}}, "X-Edgewise-Cloud"),
    ("chat/completions", {"headers": {"X-Edgewise-Cloud": ""}}, "X-Edgewise-Cloud"),
    ("messages/count_tokens", {"headers": {"X-Edgewise-Cloud": "auto"}}, "X-Edgewise-Cloud has"),
    ("chat/completions", {"model": "edgewise:cloud", **MARK}, "model"),
    # Marks on what is no message.
    ("responses", {"input": [X, CALLED | MARK, X]}, "edgewise is not supported"),
    ("messages", {"messages": [X, {"role": "assistant", "content": [USED | MARK]}, X]},
     "edgewise is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "more", "told"), UNHELD)
def test_what_cannot_be_honoured_is_refused(path: str, more: dict[str, Any], told: str) -> None:
    headers = more.get("headers", {})
    body = BODIES[path] | {key: one for key, one in more.items() if key != "headers"}
    edge = ScriptedEdge(noise(), tokenizer=ToolTokenizer())
    cloud = ScriptedCloud(noise(), tokenizer=ToolTokenizer())
    with app(cloud, edge=edge) as client:
        found = client.post(f"/v1/{path}", json=body, headers=headers)
    assert found.status_code == 400
    error = found.json()["error"]
    assert told in error["message"] if " " in told else error["param"].startswith(told)
    assert cloud.opened == 0


THOUGHT = [{"type": "thinking", "thinking": "so", "signature": "x"}]
RESULT = [{"type": "tool_result", "tool_use_id": "x", "content": "hidden-2"}]
MARKED: list[tuple[str, list[dict[str, Any]]]] = [
    *(
        (path, [turn(role, "hidden-2", local=True)])
        for path in ("chat/completions", "messages", "responses")
        for role in ("user", "assistant")
    ),
    ("messages", [{"role": "assistant", "content": THOUGHT, **MARK}]),
    ("messages", [turn("assistant", [USED]), turn("user", RESULT, local=True)]),
]


@pytest.mark.parametrize(("path", "said"), MARKED)
def test_a_mark_on_a_message_holds_at_every_endpoint(path: str, said: list[dict[str, Any]]) -> None:
    field = "input" if path == "responses" else "messages"
    first, last = turn("user", "open-1"), turn("user", "hidden-3")
    edge = ScriptedEdge(noise(), context=1 << 14, tokenizer=ToolTokenizer())
    cloud = ScriptedCloud(noise(), tokenizer=ToolTokenizer())
    with app(cloud, edge=edge) as client:
        for turns, opened in ([first, last], 1), ([first, *said, last], 0):
            cloud.opened = 0
            found = client.post(f"/v1/{path}", json=BODIES[path] | {field: turns})
            assert found.status_code == 200, found.text
            assert cloud.opened == opened


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_a_local_answer_is_known_after_a_restart(path: str) -> None:
    with app() as client:
        told = client.post(f"/v1/{path}", json=BODIES[path] | MARK).json()
        stream = client.post(f"/v1/{path}", json=BODIES[path] | MARK | {"stream": True}).text
    assert '"cloud":"none"' in stream
    said = told["choices"][0]["message"] if "choices" in told else told.get("output", [told])[0]
    field = "input" if path == "responses" else "messages"
    with app(cloud := ScriptedCloud(noise())) as client:
        found = client.post(f"/v1/{path}", json=BODIES[path] | {field: [X, said, X]})
    assert (found.status_code, cloud.opened) == (200, 0)


def test_a_mark_goes_on_to_all_that_follows_and_is_remembered() -> None:
    known = LocalMessages()
    said = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert not any(one.local for one in known.marked(said, local=False))
    assert [one.local for one in known.marked(said, local=True)] == [False, False, True]
    longer = [*said, Message("assistant", "d"), Message("user", "e")]
    assert [one.local for one in known.marked(longer, local=False)] == [False] * 2 + [True] * 3
    assert not any(one.local for one in known.marked(said[:2], local=False))
    # A system message is everybody's: who marks it decides for a conversation of his own alone.
    told = [Message("system", "s", local=True), Message("user", "t")]
    assert all(one.local for one in known.marked(told, local=False))
    plain = [Message("system", "s"), Message("user", "t")]
    assert [one.local for one in known.marked(plain, local=False)] == [False, True]
    assert not any(one.local for one in known.marked([plain[0], said[0]], local=False))


SECRET = "hidden words that nobody but this device may ever see"
ENDPOINTS = ("chat/completions", "completions", "messages", "responses")


def letters(ids: Sequence[int]) -> NDArray[np.float32]:
    """Random but reproducible letters without an end."""
    digest = hashlib.sha256(np.asarray(ids, np.int32).tobytes()).digest()
    logits = np.zeros(SIZE, np.float32)
    logits[ord("a") + digest[0] % 26] = 20.0
    return logits


class Asking:
    """A client of every endpoint at once, and what crossed to the cloud."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self.client = httpx2.Client(base_url=f"{url}/v1/", timeout=60, trust_env=False)
        self._recorder = recorder

    def ask(self, endpoint: str, turns: list[tuple[str, Any]], **more: Any) -> httpx2.Response:
        headers = more.pop("headers", {})
        return self.client.post(endpoint, json=body_of(endpoint, turns, **more), headers=headers)

    def stop(self, endpoint: str, turns: list[tuple[str, Any]], after: int, **more: Any) -> str:
        """What came of an answer that the client left after so many pieces."""
        headers, told = more.pop("headers", {}), ""
        body = body_of(endpoint, turns, stream=True, **{"tokens": 400, **more})
        with self.client.stream("POST", endpoint, json=body, headers=headers) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    told += text_in(json.loads(line[6:]))
                    after -= 1
                if after < 0:
                    break
        return told

    @property
    def crossed(self) -> str:
        return crossed(self._recorder)


def body_of(
    endpoint: str, turns: list[tuple[str, Any]], *, tokens: int = 6, **more: Any
) -> dict[str, Any]:
    """A conversation as an endpoint takes it; contents may be lists of texts."""
    kind = "input_text" if endpoint == "responses" else "text"

    def content(said: Any) -> Any:
        return said if isinstance(said, str) else [{"type": kind, "text": one} for one in said]

    messages = [{"role": role, "content": content(said)} for role, said in turns]
    if endpoint == "completions":
        text = "\n\n".join(f"{said}" for _, said in turns)
        own: dict[str, Any] = {"prompt": text, "max_tokens": tokens}
    elif endpoint == "responses":
        own = {"input": messages, "max_output_tokens": tokens}
    else:
        own = {"messages": messages, "max_tokens": tokens}
    return {"model": "edgewise", **own, **more}


def text_in(event: dict[str, Any]) -> str:
    """A stream's event's text, in any dialect."""
    if event.get("choices"):
        choice = event["choices"][0]
        return choice.get("text") or choice.get("delta", {}).get("content") or ""
    delta = event.get("delta", "")
    return delta if isinstance(delta, str) else delta.get("text", "")


@contextmanager
def asking() -> Iterator[Asking]:
    """A server that asks its cloud about every token."""
    edge = ScriptedEdge(letters, context=1 << 14)
    with (
        recorded("llama-server") as (cloud, recorder),
        at_port(answering_of(edge, cloud, queue=8)) as url,
    ):
        recorder.forget()
        found = Asking(url, recorder)
        yield found
        found.client.close()


@pytest.fixture(scope="module")
def asked() -> Iterator[Asking]:
    with asking() as found:
        yield found


@pytest.mark.parametrize("later", ENDPOINTS)
@pytest.mark.parametrize("first", ENDPOINTS)
def test_what_was_stopped_stays_here_when_the_next_question_follows(
    asked: Asking, first: str, later: str
) -> None:
    """The question itself, and its answer wherever it was stopped."""
    said = f"{SECRET} {first} {later}"
    # In a prompt without turns a beginning is known once it is long.
    many = 80 if later == "completions" else 9
    asked.stop(first, [("user", said)], 1, headers=HEADER)
    answer = asked.stop(first, [("user", f"{said} again")], many, headers=HEADER)
    assert len(answer) >= 5
    for more in ([("user", said), ("user", "and more")], [("user", [said, "and more"])]):
        assert asked.ask(later, more).status_code == 200
    assert "hidden" not in asked.crossed
    before = asked.crossed
    turns = [("user", "what was it?"), ("assistant", answer), ("user", "go on")]
    assert asked.ask(later, turns).status_code == 200
    assert asked.crossed == before


def test_a_completion_is_local_where_it_says_so(asked: Asking) -> None:
    """By its text and by token ids; from then on it is remembered."""
    before, said = asked.crossed, f"{SECRET} completed"
    ids: dict[str, Any] = {"prompt": list(f"so: {said}".encode())}
    for more, headers in ((MARK, {}), ({}, HEADER), (ids | MARK, {}), ({}, {}), (ids, {})):
        body = {"model": "edgewise", "prompt": said, "max_tokens": 4} | more
        found = asked.client.post("completions", json=body, headers=headers).json()
        assert found["usage"]["edgewise"]["sent"]["bytes"] == 0
    assert asked.crossed == before
    assert asked.ask("completions", [("user", "open and completed")]).status_code == 200
    assert asked.crossed != before


@pytest.mark.parametrize("later", ENDPOINTS)
def test_a_refused_request_was_local_too(asked: Asking, later: str) -> None:
    said = f"{SECRET} refused {later}"
    refused = asked.ask("chat/completions", [("user", said)], model="edgewise:cloud", **MARK)
    assert refused.status_code == 400
    too_long = [("user", f"{SECRET} long {later}"), ("user", "x" * (1 << 17))]
    headers = {"headers": HEADER}
    assert asked.ask("chat/completions", too_long[:1] + too_long, **headers).status_code == 400
    assert asked.ask(later, [("user", said)]).status_code == 200
    counted = turn("user", f"{SECRET} counted {later}", local=True)
    body = CHAT | {"messages": [counted]}
    assert asked.client.post("messages/count_tokens", json=body).status_code == 200
    assert asked.ask(later, [("user", counted["content"])]).status_code == 200
    assert "hidden" not in asked.crossed


@pytest.mark.parametrize("later", ENDPOINTS)
def test_a_title_of_a_local_conversation_is_written_here(asked: Asking, later: str) -> None:
    said = f'{SECRET}:\n\n"titled"\t{later}'
    asked.ask("messages", [("user", said)], headers=HEADER)
    for quoted in (said, json.dumps(said), said.replace("\n\n", "\n  > ")):
        title = f"### Task: a title\n<chat_history>\nUSER: {quoted}\nASSISTANT: x\n</chat_history>"
        assert asked.ask(later, [("user", title)]).status_code == 200
        assert asked.ask(later, [("system", title), ("user", "a title")]).status_code == 200
    assert "hidden" not in asked.crossed


def knows(known: LocalMessages, text: str, role: str = "user", **more: Any) -> bool:
    """Whether a message without a mark is local."""
    return known.marked([Message(role, text)], **{"local": False, **more})[0].local


SPOKEN = {
    "German": "Mein Arzt heißt Müller, die Prüfung ist „übermorgen“",
    "French": "Le résultat de l\u2019examen\u00a0: négatif, dit Zoë",
    "Greek": "Ο γιατρός μου λέγεται Παπαδόπουλος",
    "Russian": "Моего врача зовут Иванов, ёлка",
    "Korean": "제 의사의 이름은 김민수입니다",
    "Chinese": "我的医生叫王小明，他在北京工作",
    "Hindi": "मेरे डॉक्टर का नाम शर्मा है",
    "emoji": "my doctor\u2019s name is Smith 😀👩\u200d⚕️ and so on",
    "a path": r"the file C:\new\urgent\u00e9 of Smith\\table",
}
QUOTED: dict[str, Callable[[str], str]] = {
    "JSON": json.dumps,
    "JSON in JSON": lambda said: json.dumps(json.dumps({"said": said})),
    "letters in JSON": lambda said: json.dumps(said, ensure_ascii=False),
    "letters in JSON in JSON": lambda said: json.dumps(json.dumps(said, ensure_ascii=False)),
    "decomposed": lambda said: normalize("NFD", said),
    "compatible": lambda said: normalize("NFKC", said),
    "other blanks": lambda said: said.replace(" ", "\u00a0\u3000\u200b"),
    "plain quotes": lambda said: re.sub("[„“\u2019]", "'", said),
    "invisible signs": lambda said: re.sub(
        r"(?<=[^\W\d])(?=[^\W\d])", "\u2060\u00ad\ufe0f\u3164", said
    ),
    "capitals": str.upper,
    "HTML": lambda said: escape(said).encode("ascii", "xmlcharrefreplace").decode(),
}


@pytest.mark.parametrize("quote", QUOTED.values(), ids=QUOTED.keys())
@pytest.mark.parametrize("said", SPOKEN.values(), ids=SPOKEN.keys())
def test_a_text_is_known_however_it_is_quoted(said: str, quote: Callable[[str], str]) -> None:
    known = LocalMessages()
    assert knows(known, said, local=True)
    assert knows(known, f"### Task: a title\nUSER: {quote(said)}\nASSISTANT: x")
    known = LocalMessages()
    known.writing(said)
    known.answered([Message("assistant", quote(said), local=True)])
    assert knows(known, said, "assistant")


def test_escapes_that_never_end_take_no_time() -> None:
    known = LocalMessages()
    assert knows(known, f"{SECRET} of mine", local=True)
    for text in ("\\" * 400_000, "&#" + "9" * 400_000, "&" * 400_000, "&a" * 200_000 + ";"):
        assert not knows(known, text)


def test_many_texts_that_begin_alike_take_one_look_for_each_length() -> None:
    known, begin = LocalMessages(), "a" * 16
    flood = [Message("user", f"{begin}{number:05}", local=True) for number in range(2000)]
    known.marked(flood, local=False)
    parts = [f"{begin}z{number:04}" for number in range(1000)]
    assert not knows(known, " ".join(parts), parts=[parts])
    assert knows(known, " ".join(parts), parts=[[*parts, flood[-1].content]])


def test_a_request_that_takes_too_many_looks_is_local() -> None:
    """All its parts together, each of them cheap: none may keep the others' threads for minutes."""
    known, begin = LocalMessages(), "a" * 16
    flood = [Message("user", begin + "b" * number, local=True) for number in range(1, 1001)]
    known.marked(flood, local=False)
    parts = [f"{begin}{'z' * 1000}{number}" for number in range(1000)]
    assert not knows(known, "hello", parts=[parts[:10]])
    assert knows(known, "hello", parts=[parts])


def test_an_answer_is_known_in_any_language_wherever_it_was_stopped() -> None:
    for said in SPOKEN.values():
        for end in range(8, len(said)):
            known = LocalMessages()
            for written in range(end + 1):
                known.writing(said[:written])
            assert knows(known, said[:end], "assistant")
            assert not knows(known, "Bien sûr, 我的", "assistant")
    # Of a long one the beginning is remembered.
    known, text = LocalMessages(), ""
    while known.writing(text):
        text += "word "
    assert len(text) < 200
    assert knows(known, text + "and so on", "assistant")


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2))
def test_a_hostile_client_of_every_endpoint_gets_nothing_across(seed: int) -> None:
    """It repeats, trims, joins, stops, asks for titles and is refused."""
    draw = random.Random(seed)
    with asking() as asked:
        secrets: list[tuple[str, str]] = []
        for number in range(30):
            turns: list[tuple[str, Any]] = [("user", f"open {number}")]
            for role, text in draw.sample(secrets, min(len(secrets), draw.randint(0, 3))):
                turns.append((role, [text, "more"] if draw.random() < 0.3 else text))
            marked = draw.random() < 0.3 or not secrets
            local = marked or len(turns) > 1
            draw.shuffle(turns)
            said = f"{SECRET} {seed} {number}" if local else f"open end {number}"
            turns.append(("user", said))
            more: dict[str, Any] = {"headers": HEADER} if marked else {}
            if draw.random() < 0.2:
                more["model"] = "edgewise:cloud" if local else "nobody"
            endpoint = draw.choice(ENDPOINTS)
            if draw.random() < 0.4:
                asked.stop(endpoint, turns, draw.randint(0, 9), **more)
            else:
                asked.ask(endpoint, turns, **more)
            if local and endpoint != "completions":
                secrets.append(("user", said))
        assert "open" in asked.crossed
        assert "hidden" not in asked.crossed


def test_no_strangers_refused_requests_make_it_forget() -> None:
    known, mine = LocalMessages(most=50, most_asked=20), f"{SECRET} of mine"
    marked = known.marked([Message("user", mine, local=True)], local=False, owner="me")
    known.answered(marked, owner="me")
    for number in range(200):
        for owner in ("me", "other"):
            assert knows(known, f"flood {number}", local=True, owner=owner)
    assert knows(known, mine, owner="me")
    # Another's is not mine.
    assert not knows(known, mine, owner="other")
    # What was answered is forgotten in its order, the refused apart.
    for number in range(50):
        known.answered([Message("user", f"later number {number}", local=True)], owner="me")
        assert knows(known, f"flood {number}", local=True, owner="me")
    assert not knows(known, mine, owner="me")


def kept_waiting() -> bool:
    """Whether an answer once waited half as long as a long text is searched for local texts."""
    known, searched = LocalMessages(), list[float]()
    known.marked([Message("user", f"{SECRET} of mine")], local=True)
    long = Message("user", "".join(random.Random(1).choices("0123456789abcdef", k=400_000)))

    def search() -> None:
        begun = time.monotonic()
        known.marked([long], local=False)
        searched.append(time.monotonic() - begun)

    searching = threading.Thread(target=search)
    searching.start()
    longest = 0.0
    while not searched:
        begun = time.monotonic()
        known.writing("an answer")
        longest = max(longest, time.monotonic() - begun)
    searching.join()
    return longest >= searched[0] / 2


def test_a_long_text_keeps_no_answer_waiting() -> None:
    """It is searched beside the answers; a busy machine may keep one waiting, not each."""
    assert not all(kept_waiting() for _ in range(10))


@pytest.mark.parametrize(
    ("thought", "said", "behind"),
    [
        ("<think>\nSo the user asks. ", "It is hidden.", "</think>\n\n"),
        ("[THINK]", f"{SECRET} and much more of it, for as long as it takes", "[/THINK]"),
        ('<tool_call>\n{"name": "look", ', '{"word": "hidden"}', '"arguments": '),
    ],
)
@pytest.mark.parametrize("length", [1, 300])
def test_a_part_of_a_local_answer_is_known_by_itself(
    thought: str, said: str, behind: str, length: int
) -> None:
    """Clients send back the whole answer, or one without its thoughts, or a call's arguments."""
    # Numbers, since an answer ends where it goes round in circles.
    between = "".join(map(str, range(length)))[:length]
    written = f"{thought}{between}{behind}{said}"
    edge = ScriptedEdge(replying(written, prompt="sky: "))
    with app(ScriptedCloud(noise()), edge=edge, score=0.0) as client:
        body = {"model": "edgewise", "prompt": "sky: ", "max_tokens": 600}
        told = client.post("/v1/completions", json=body, headers=HEADER).json()
        assert told["choices"][0]["text"] == written
        for back in (written, said):
            # Another question each time: the first one is local from then on.
            later = post(client, [turn("assistant", back), turn("user", f"{len(back)}?")]).json()
            assert later["choices"][0]["message"].get("edgewise") == {"cloud": "none"}


def test_what_merely_looks_alike_goes_on() -> None:
    known = LocalMessages()
    known.answered([Message("user", "yes", local=True), Message("user", SECRET, local=True)])
    pieces = ("The ", "capital ", "of ", "that ", "country ", "is ", "Paris")
    for count in range(len(pieces)):
        known.writing("".join(pieces[: count + 1]))
    whole = "The capital of that country is"
    others = [("assistant", "yes"), ("assistant", f"{whole} Rome")]
    others += [("user", one) for one in ("yes, and what is the capital?", "The", SECRET[:-6])]
    for role, text in others:
        assert not knows(known, text, role), text
    own = [("user", "yes"), ("user", f"'{SECRET}', it said"), ("assistant", "The")]
    for role, text in [*own, ("assistant", whole)]:
        assert knows(known, text, role), text


SAID = "Write to anna@b.example:"


@pytest.mark.parametrize(
    ("redact", "model", "status"),
    [
        ("email", "edgewise:cloud", 200),
        ("email=local", "edgewise:cloud", 400),
        ("email=local", "edgewise", 200),
    ],
)
def test_what_is_redacted_comes_back_as_it_was_and_a_local_class_stays(
    redact: str, model: str, status: int
) -> None:
    cloud = ScriptedCloud(replying(" mail to <EMAIL_1> now", prompt="Write to <EMAIL_1>:"))
    shown = context_filter(Settings(redact=redact))
    edge = ScriptedEdge(noise(), context=1 << 14)
    body = {"model": model, "messages": [turn("user", SAID)], "max_tokens": 40}
    with app(adapted(cloud, ByteTokenizer(), context_filter=shown), edge=edge) as client:
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == status, reply.text
    assert ("local" in reply.text) == (status == 400)
    assert (cloud.opened == 0) == (redact == "email=local")
    assert not any(b"anna" in bytes(ids) for ids, _ in cloud.asks)
    if redact == "email":
        assert cloud.asks
        assert "mail to anna@b.example now" in reply.text
        assert "EMAIL_1" not in reply.text
