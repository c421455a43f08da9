"""Recordings of the bundled pair for the first screen of the server's page.

    python -m pocket.recordings

remakes src/edgewise/server/page/traces: what the page would have been sent, and when, had each
question been asked of each model in `MODELS`. The models are the bundled ones at the pace of
larger ones: the edge of one of half a billion weights on two cores, the cloud of one that writes a
token in 27 ms and is 50 ms away. That changes when a token comes, and never which.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from edgewise.events import Event, Finished, Pending, RolledBack, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.pair import Pair, open_pair
from edgewise.parts import make_policy
from edgewise.prompts import Message, prompt_of
from edgewise.server.chat import ChatReply, ChatRequest
from edgewise.settings import Settings
from edgewise_lab.bench.pace import HALF_BILLION, EnginePace, LateCloud, PacedEdge
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

TRACES = Path(__file__).parents[1] / "src" / "edgewise" / "server" / "page" / "traces"
MODELS = ("edgewise@0.05", "edgewise:edge", "edgewise:cloud")
ROUND_TRIP = 0.05
"""Seconds."""


class Canned(NamedTuple):
    """A question of the first screen, by its id in the test split; `title` says what it shows."""

    name: str
    question: str
    title: str


CANNED = (
    Canned("catsup", "facts-1273", "A word the edge has wrong"),
    Canned("coins", "steps-1272", "A sum that slips"),
    Canned("oxygen", "analogy-1258", "An analogy that goes astray"),
    Canned("france", "facts-1267", "Nothing to ask the cloud for"),
)

Timed = tuple[float, Event]
"""Seconds since the question, and what was said then."""


def main() -> None:
    """Write all of them, and the list that the page reads."""
    questions = {question.id: question for question in pocketqa().questions}
    with open_pair(Settings()) as pair:
        listed = [trace(pair, canned, questions[canned.question]) for canned in CANNED]
    for one in listed:
        (TRACES / f"{one['name']}.json").write_text(compact(one))
    shown = ("name", "title", "family", "prompt", "expected")
    index = [{name: one[name] for name in shown} for one in listed]
    (TRACES / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def trace(pair: Pair, canned: Canned, question: Question) -> dict[str, Any]:
    """What a file holds: the question, and each model's chunks with their times in seconds."""
    return {
        "name": canned.name,
        "title": canned.title,
        "family": question.family,
        "prompt": question.prompt,
        "expected": question.answer,
        "recorded": {"edge": pair.both()[0].name, "round_trip": ROUND_TRIP},
        "answers": {model: chunks(pair, question.prompt, model) for model in MODELS},
    }


def answer(pair: Pair, prompt: str, model: str, *, paced: bool) -> Iterator[Timed]:
    """What `model` says to a question that begins a conversation."""
    edge, cloud = pair.both()
    decoder = Decoder(
        PacedEdge(edge, HALF_BILLION) if paced else edge,
        router=pair.router,
        policy=_policy(pair, model),
        cloud=LateCloud(cloud, _seconds) if paced else cloud,
    )
    asked = prompt_of(edge.tokenizer, [Message("user", prompt)])
    began = time.monotonic()
    with decoder.stream(
        asked, max_tokens=pair.settings.max_tokens, pending=True, candidates=True
    ) as events:
        for event in events:
            yield time.monotonic() - began, event


def _policy(pair: Pair, model: str) -> Policy:
    """As the server's, of the model's id."""
    _, _, share = model.partition("@")
    if share:
        return make_policy(replace(pair.settings, cloud_share=float(share)), pair.starts)
    own = make_policy(pair.settings, pair.starts)
    return own.edge_alone() if model.endswith(":edge") else own.cloud_alone()


def _seconds(tokens: int, computed: int) -> float:
    return ROUND_TRIP + EnginePace().of(tokens, computed)


def chunks(pair: Pair, prompt: str, model: str) -> list[tuple[float, dict[str, Any]]]:
    """As the page is sent them, less what it does not read."""
    body = ChatRequest.model_validate(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "edgewise": {"provenance": True, "pending": True},
        }
    )
    writer = ChatReply(body, pair.edge.tokenizer)
    timed: list[tuple[float, dict[str, Any]]] = [(0.0, pruned(one)) for one in writer.begun()]
    for seconds, event in answer(pair, prompt, model, paced=True):
        if isinstance(event, Token | Pending | RolledBack | Finished):
            timed += [(round(seconds, 3), pruned(one)) for one in writer.more(event)]
    return timed


def pruned(chunk: dict[str, Any]) -> dict[str, Any]:
    """Without ids, nulls and bytes, and with numbers of no more digits than are shown."""
    kept = {name: chunk[name] for name in ("edgewise", "usage") if chunk.get(name)}
    choices = [
        {name: choice[name] for name in ("delta", "finish_reason") if choice.get(name)}
        for choice in chunk["choices"]
    ]
    return _short({"choices": choices, **kept})


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items() if name != "bytes"}
    return value


def compact(one: dict[str, Any]) -> str:
    """As JSON, a chunk a line."""
    dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # noqa: E731
    head = dump({name: value for name, value in one.items() if name != "answers"})
    answers = ",\n".join(
        f'"{model}":[\n' + ",\n".join(dump(timed) for timed in found) + "\n]"
        for model, found in one["answers"].items()
    )
    return f'{head[:-1]},"answers":{{\n{answers}\n}}}}\n'


if __name__ == "__main__":
    main()
