"""Answers of the loop, for the package `edgewise-web` to repeat: `python -m tests.web.transcripts`.

Each has the edge's steps, the scores, what was decided, every frame as it travelled, the tokens.
What a clock or a draw puts into a frame (deadlines, numbers of asks, names) is made the same.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from msgspec.structs import replace
from safetensors.numpy import save_file

from edgewise.addresses import bundled
from edgewise.cloud import gateway_link
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import Needs, Step
from edgewise.events import Consult, Finished, Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.base import Router
from edgewise.routers.card import read_card
from edgewise.routers.mlp import Mlp
from edgewise.routers.signals import width_of
from edgewise.routers.untrained import Entropy, MaxProb
from edgewise.testing.scripted_edge import EOS, Script, ScriptedEdge, noise
from edgewise.wire import protocol
from edgewise.wire.protocol import Ask, Failed, FromDevice, FromGateway, Opened, Reply, encode
from tests.doubles.scripted_engine import Misdeed, ScriptedEngine
from tests.gateway.running import gateway

FOLDER = Path(__file__).parents[2] / "web" / "test"
FILE, ROUTER = FOLDER / "transcripts.json", FOLDER / "router"
TOP = 10
DEADLINE = 5.0
TEXT = "The naïve café of 12 Main Street is “open”, says Ada: 日本語 🙂.\nIt was in the (old) town"

CONSULT = "index outcome requested answered"
TOKEN = "index id text source reason score threshold logprob"
POLICY = {"threshold": "threshold", "cloudShare": "cloud_share"}
POLICY |= {"maxCloudTokens": "max_cloud_tokens", "span": "span", "deadline": "deadline"}
USAGE = {"edge": "edge_tokens", "cloud": "cloud_tokens", "wasted": "wasted_tokens"}
USAGE |= {"corrections": "correction_tokens", "calls": "cloud_calls", "failed": "failed_calls"}
USAGE |= {"cloudShare": "cloud_share"}

Fault = Callable[[int], Misdeed | None]

CHANGING: dict[type, dict[str, Any]] = {
    Ask: {"deadline": round(1000 * DEADLINE)},
    Opened: {"session": "session"},
    Reply: {"engine_seconds": 0.25},
    Failed: {"message": "failed", "request_id": "name"},
}
"""Fields of frames that differ from run to run, and what is kept of them; `ask` is counted."""


class Recorded:
    """A router that keeps what it saw."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.needs = router.needs | Needs.ENTROPY | Needs.TOP
        self.top = max(router.top, TOP)
        self.steps: list[dict[str, Any]] = []

    def score(self, step: Step) -> float:
        score = float(self._router.score(step))
        top = [[one.id, one.logprob] for one in step.candidates(TOP)]
        at = step.position
        self.steps.append({"position": at, "top": top, "entropy": step.entropy, "score": score})
        return score


@contextmanager
def recorded_frames() -> Iterator[list[list[str]]]:
    """Frames of the device and of the gateway, in hexadecimal, in their order."""
    found: list[list[str]] = []
    numbers: dict[int, int] = {}
    decode = gateway_link.from_gateway

    def keep(sender: str, frame: FromDevice | FromGateway) -> None:
        plain: dict[str, Any] = dict(CHANGING.get(type(frame), {}))
        ask: int | None = getattr(frame, "ask", None)
        if ask is not None:
            plain["ask"] = numbers.setdefault(ask, len(numbers) + 1)
        found.append([sender, encode(replace(frame, **plain)).hex()])

    def sent(frame: FromDevice) -> bytes:
        keep("device", frame)
        return encode(frame)

    def came(data: bytes) -> FromGateway:
        frame = decode(data)
        keep("gateway", frame)
        return frame

    with (
        mock.patch.object(gateway_link, "encode", sent),
        mock.patch.object(gateway_link, "from_gateway", came),
    ):
        yield found


def writing(text: str, prompt: int, *, sure: float = 6.0) -> Script:
    """Writes `text` behind so many ids, more and less sure of it, then ends."""
    reply, other = [*text.encode(), EOS], noise(3, scale=2.0)

    def script(ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        logits = other(ids)
        logits[reply[min(len(ids) - prompt, len(reply) - 1)]] += sure
        return logits

    return script


def transcript(
    name: str,
    router: Router,
    policy: Policy,
    *,
    files: str | None = None,
    edge: Script | None = None,
    fault: Fault = lambda ask: None,
    cloud: str = TEXT.upper(),
    max_tokens: int = 24,
) -> dict[str, Any]:
    """One answer. `files` is where the router's checkpoint lies, below the repository."""
    prompt = [*b"Say where it was: 12 Main"]
    kept, model = Recorded(router), ScriptedEdge(edge or writing(TEXT, len(prompt)))
    text = [*cloud.encode(), EOS]
    start, last = len(prompt), len(text) - 1
    policy = replace(policy, deadline=DEADLINE)
    engine = ScriptedEngine(script=lambda ids: text[min(max(0, len(ids) - start), last)])
    # A logprob for every token, as most engines tell.
    engine.keeps_back = False
    with closing(engine), gateway([engine.url]) as served, recorded_frames() as frames:
        # Its first consults were those by which the gateway looked whether it is ready.
        asked = engine.asked
        engine.fault = lambda number: fault(number - asked)
        far = GatewayCloud(served.url)
        try:
            far.check_vocabulary(model.tokenizer)
            decoder = Decoder(model, router=kept, policy=policy, cloud=far)
            with decoder.stream(prompt, max_tokens=max_tokens) as events:
                told = list(events)
                budget = events.budget
        finally:
            far.close()
    (end,) = (one for one in told if isinstance(one, Finished))
    names = {Entropy: "entropy", MaxProb: "max-prob"}
    return {
        "name": name,
        "router": files or names[type(router)],
        "policy": {name: getattr(policy, field) for name, field in POLICY.items()},
        "tokenizer": protocol.tokenizer_fingerprint(model.tokenizer),
        "prompt": prompt,
        "maxTokens": max_tokens,
        "context": model.context,
        "steps": kept.steps,
        "frames": frames if policy.asks else [],
        "consults": [_values(one, CONSULT) for one in told if isinstance(one, Consult)],
        "tokens": [_values(one, TOKEN) for one in told if isinstance(one, Token)],
        "finished": {
            "text": end.text,
            "finishReason": end.finish_reason,
            **{name: getattr(end.usage, field) for name, field in USAGE.items()},
            "bucket": budget.bucket,
        },
    }


def _values(event: Token | Consult, names: str) -> list[Any]:
    return [getattr(event, name) for name in names.split()]


def write_router() -> None:
    """A small perceptron over all that a browser can read; its weights are drawn."""
    card = read_card(bundled("routers") / "bundled-edge")
    inputs = ("top_logprobs", "text", "ranks")
    card = replace(card, inputs=inputs, top_k=TOP, behaviour=(), probability=())
    width, rng = width_of(inputs, 0, TOP), np.random.default_rng(5)
    sizes = [width, 8, 1]
    tensors = {"mean": rng.normal(size=width), "std": rng.uniform(0.5, 2.0, size=width)}
    for i, (a, b) in enumerate(pairwise(sizes)):
        tensors |= {f"layers.{i}.weight": rng.normal(size=(b, a)) * 0.3}
        tensors |= {f"layers.{i}.bias": rng.normal(size=b)}
    ROUTER.mkdir(parents=True, exist_ok=True)
    (ROUTER / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(card)))
    save_file(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()},
        ROUTER / "model.safetensors",
    )


def mlp(folder: Path) -> Mlp:
    return Mlp.load(read_card(folder), folder)


def transcripts() -> list[dict[str, Any]]:
    """All of them, made now."""
    packaged = bundled("routers") / "bundled-edge"
    root = FOLDER.parents[1]
    noisy = noise(1)
    return [
        transcript("a static threshold", Entropy(), Policy(threshold=0.35)),
        transcript("a share", MaxProb(), Policy(threshold=0.5, cloud_share=0.3), edge=noisy),
        transcript("spans", MaxProb(), Policy(threshold=0.4, cloud_share=0.5, span=3)),
        transcript(
            "a cap", MaxProb(), Policy(threshold=0.3, max_cloud_tokens=3, span=2), edge=noisy
        ),
        transcript("nothing", MaxProb(), Policy(cloud_share=0.0)),
        transcript("the cloud alone", MaxProb(), Policy(cloud_share=1.0, span=16)),
        transcript("the cloud ends it", MaxProb(), Policy(threshold=0.1, span=4), cloud="NO"),
        transcript(
            "faults",
            MaxProb(),
            Policy(threshold=0.1),
            fault=lambda ask: {0: "error", 2: "declined", 3: "error"}.get(ask),
        ),
        transcript(
            "the router of the package",
            mlp(packaged),
            Policy(threshold=0.03),
            files=str(packaged.relative_to(root)),
            max_tokens=40,
        ),
        transcript(
            "a router that reads all",
            mlp(ROUTER),
            Policy(threshold=0.22),
            files=str(ROUTER.relative_to(root)),
            max_tokens=100,
        ),
    ]


def main() -> None:
    write_router()
    text = json.dumps(transcripts(), separators=(",", ":"))
    FILE.write_text(text.replace('},{"name', '},\n{"name') + "\n")


if __name__ == "__main__":
    main()
