"""The application over scripted models, in this process: for what a real pair never does."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from starlette.testclient import TestClient

from edgewise.cloud.base import CloudModel
from edgewise.costs.meter import Billing
from edgewise.edge.base import Floats
from edgewise.pair import Pair
from edgewise.routers.untrained import Constant
from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.server.callers import Callers
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from tests.listening.running import listener

TEXT = "The sky is blue."
ASK: dict[str, Any] = {"model": "edgewise", "prompt": "sky: ", "max_tokens": 32}
CHAT: dict[str, Any] = {"model": "edgewise", "messages": [{"role": "user", "content": "sky: "}]}
BODIES: dict[str, dict[str, Any]] = {
    "completions": ASK,
    "chat/completions": CHAT,
    "responses": {"model": "edgewise", "input": "sky: "},
    "messages": {**CHAT, "max_tokens": 32},
    "messages/count_tokens": CHAT,
}
"""A question to every endpoint."""


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def form_of(schema: Any, **more: Any) -> dict[str, Any]:
    """As the chat API takes a schema."""
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


class HeldEdge(ScriptedEdge):
    """Writes once its gate is open; `begun` says that it waits."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        script = noise(scale=1.0)

        def held(ids: Sequence[int]) -> Floats:
            self.begun.set()
            assert self.gate.wait(60)
            return script(ids)

        super().__init__(held)


def data_of(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, less the word that ends some."""
    data = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


@contextmanager
def app(
    cloud: CloudModel | list[CloudModel] | None = None,
    *,
    score: float = 1.0,
    context: int = 4096,
    api_key: str | None = None,
    callers: Callers | None = None,
    edge: ScriptedEdge | None = None,
    **options: Any,
) -> Iterator[TestClient]:
    """A client of a server whose edge model writes `TEXT` after "sky: "."""
    edge = edge or ScriptedEdge(replying(TEXT, prompt="sky: "), context=context)
    answering = answering_of(edge, cloud, score=score, **options)
    made = make_app(answering, callers=callers or Callers(api_key=api_key))
    with closing(answering), TestClient(made, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def at_port(
    answering: Answering, *, callers: Callers | None = None, grace: int = 0
) -> Iterator[str]:
    """The application at a port, for what happens while an answer is written; yields the URL."""
    made = make_app(answering, callers=callers or Callers())
    with closing(answering), listener(made, grace=grace) as here:
        yield f"http://127.0.0.1:{here.port}"


def answering_of(
    edge: ScriptedEdge,
    cloud: CloudModel | list[CloudModel] | None = None,
    *,
    score: float = 1.0,
    queue: int = 1,
    billing: Billing | None = None,
    **settings: Any,
) -> Answering:
    """One answer at a time over scripted models."""
    own = {"threshold": 0.5, "speculate": 0, **settings}
    pair = Pair(edge, cloud=cloud or "none", router=Constant(score), **own)
    pair.billing = pair.decoder.billing = billing
    return Answering(pair, slots=1, queue=queue)
