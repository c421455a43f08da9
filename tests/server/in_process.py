"""The application over scripted models, in this process: for what a real pair never does."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from edgewise.cloud.base import CloudModel
from edgewise.costs.meter import Billing
from edgewise.pair import Pair
from edgewise.routers.constant import Constant
from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.server.callers import Callers
from edgewise.server.models import Models
from edgewise.testing.scripted_edge import ScriptedEdge, replying

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
    made = make_app(Models([answering]), callers=callers or Callers(api_key=api_key))
    with TestClient(made, raise_server_exceptions=False) as client:
        yield client
    answering.close()


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
