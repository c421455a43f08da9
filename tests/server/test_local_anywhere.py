"""What was local stays here, by whatever endpoint it comes back, however it was cut or joined."""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from edgewise.cloud.engine import LlamaServer
from edgewise.prompts import Message
from edgewise.server.callers import Callers
from edgewise.server.local_messages import LocalMessages
from edgewise.testing.scripted_edge import SIZE, ScriptedEdge
from tests.cloud.recording import Recorder, recording
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server.at_port import at_port
from tests.server.in_process import answering_of
from tests.server.test_local import crossed

MARK = {"edgewise": {"cloud": "none"}}
HEADER = {"X-Edgewise-Cloud": "none"}
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
def asking(callers: Callers | None = None) -> Iterator[Asking]:
    """A server that asks its cloud about every token."""
    with ExitStack() as stack:
        engine = ScriptedEngine(dialect="llama-server")
        stack.callback(engine.close)
        recorder = stack.enter_context(recording(engine.url))
        cloud = LlamaServer(recorder.url)
        stack.callback(cloud.close)
        edge = ScriptedEdge(letters, context=1 << 14)
        served = answering_of(edge, cloud, queue=8)
        recorder.forget()
        found = Asking(stack.enter_context(at_port(served)), recorder)
        stack.callback(found.client.close)
        yield found


@pytest.fixture(scope="module")
def asked() -> Iterator[Asking]:
    with asking() as found:
        yield found


@pytest.mark.parametrize("later", ENDPOINTS)
@pytest.mark.parametrize("first", ENDPOINTS)
def test_a_stopped_local_question_stays_here_when_the_next_one_follows(
    asked: Asking, first: str, later: str
) -> None:
    said = f"{SECRET} {first} {later}"
    asked.stop(first, [("user", said)], 1, headers=HEADER)
    for more in ([("user", said), ("user", "and more")], [("user", [said, "and more"])]):
        assert asked.ask(later, more).status_code == 200
    assert "hidden" not in asked.crossed


@pytest.mark.parametrize("later", ENDPOINTS)
@pytest.mark.parametrize("first", ENDPOINTS)
def test_a_local_answer_stays_here_wherever_it_was_stopped(
    asked: Asking, first: str, later: str
) -> None:
    said = f"{SECRET} answered {first} {later}"
    # In a prompt without turns a beginning is known once it is long.
    answer = asked.stop(
        first, [("user", said)], 80 if later == "completions" else 9, headers=HEADER
    )
    assert len(answer) >= 5
    before = asked.crossed
    turns = [("user", "what was it?"), ("assistant", answer), ("user", "go on")]
    found = asked.ask(later, turns)
    assert found.status_code == 200
    assert asked.crossed == before


@pytest.mark.parametrize("later", ENDPOINTS)
def test_a_refused_request_was_local_too(asked: Asking, later: str) -> None:
    said = f"{SECRET} refused {later}"
    refused = asked.ask("chat/completions", [("user", said)], model="edgewise:cloud", **MARK)
    assert refused.status_code == 400
    too_long = [("user", f"{SECRET} long {later}"), ("user", "x" * (1 << 17))]
    headers = {"headers": HEADER}
    assert asked.ask("chat/completions", too_long[:1] + too_long, **headers).status_code == 400
    assert asked.ask(later, [("user", said)]).status_code == 200
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


def test_by_token_ids_too(asked: Asking) -> None:
    said = f"{SECRET} by ids"
    asked.ask("completions", [("user", said)], headers=HEADER)
    body = {"model": "edgewise", "prompt": list(f"so: {said}".encode()), "max_tokens": 4}
    assert asked.client.post("completions", json=body).status_code == 200
    assert "hidden" not in asked.crossed


@pytest.mark.parametrize("seed", range(4))
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
    known = LocalMessages(most=50, most_asked=20)
    mine = [Message("user", f"{SECRET} of mine", local=True)]
    known.answered(known.marked(mine, local=False, owner="me"), owner="me")
    for number in range(200):
        for owner in ("me", "other"):
            known.marked([Message("user", f"flood {number}")], local=True, owner=owner)
    plain = [Message("user", f"{SECRET} of mine")]
    assert known.marked(plain, local=False, owner="me")[0].local
    # Another's is not mine.
    assert not known.marked(plain, local=False, owner="other")[0].local
    # What was answered is forgotten in its order, the refused apart.
    for number in range(50):
        known.answered([Message("user", f"later number {number}", local=True)], owner="me")
        known.marked([Message("user", f"flood {number}")], local=True, owner="me")
    assert not known.marked(plain, local=False, owner="me")[0].local


def test_what_merely_looks_alike_goes_on() -> None:
    known = LocalMessages()
    known.answered([Message("user", "yes", local=True), Message("user", SECRET, local=True)])
    pieces = ("The ", "capital ", "of ", "that ", "country ", "is ", "Paris")
    for count in range(len(pieces)):
        known.writing("".join(pieces[: count + 1]))
    for role, text in (
        ("user", "yes, and what is the capital?"),
        ("assistant", "yes"),
        ("user", "The"),
        ("user", SECRET[:-6]),
        ("assistant", "The capital of that country is Rome"),
    ):
        assert not known.marked([Message(role, text)], local=False)[0].local, text
    for role, text in (
        ("user", "yes"),
        ("assistant", "The"),
        ("assistant", "The capital of that country is"),
        ("user", f"'{SECRET}', it said"),
    ):
        assert known.marked([Message(role, text)], local=False)[0].local, text
