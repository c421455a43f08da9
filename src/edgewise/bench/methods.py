"""Ways to route tokens over one link, from that of the paper's demo (arXiv 2504.07878) to ours.

The demo has no KV cache on the device (each token reads the whole text again), sends the whole
text with each consult over a new connection, keeps one token of the reply, and waits for it. Each
part of ours can be added to that by itself, or left out of ours.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any, NamedTuple, Self

from edgewise.bench.link import http_target
from edgewise.bench.plain_consults import PlainCloud, WrittenOut
from edgewise.bench.uncached import UncachedEdge
from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.engines.base import Engine
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import LONGEST_DEADLINE, Policy
from edgewise.testing.link import Link, Quality

RUN_AHEAD = 16


class Method(NamedTuple):
    """Which parts a method has; without any it is the paper's.

    A KV `cache` on the device, a connection that is `kept` between consults, token `ids` instead of
    text, `pushes` of prompt and answer ahead of consults, into a session that keeps them, and
    running `ahead` of a consult on the edge's own guess.
    """

    cache: bool = False
    kept: bool = False
    ids: bool = False
    pushes: bool = False
    ahead: bool = False

    def without(self, part: str) -> "Method":
        """Less a part, and what cannot be had without it: a session is in ids, on a connection."""
        pushes = self.pushes and part not in ("kept", "ids")
        return self._replace(**{"pushes": pushes, part: False})


PAPER = Method()
OURS = Method(cache=True, kept=True, ids=True, pushes=True, ahead=True)
TO_AN_ENGINE = OURS.without("pushes")


class Every:
    """A router that asks for every `n`-th token: where is no matter when only time counts."""

    needs, top = Needs.HIDDEN, 0

    def __init__(self, n: int) -> None:
        self._n = n

    def score(self, step: Step) -> float:
        """1 where the cloud shall be asked, else 0."""
        return float(step.position % self._n == 0)


class EngineAt(NamedTuple):
    """An engine at `url`, plain HTTP, which `connect` opens at any address that leads to it.

    `gateway` is the address of one in front of it; without it nothing can be pushed.
    """

    url: str
    connect: Callable[[str], Engine]
    key: str | None = None
    gateway: str | None = None


class Methods:
    """Decoders for methods that share an edge, an engine and a link's quality, until it is closed.

    All ask at the same rhythm, and a consult that fails ends the answer: what is measured has none.
    `to_engine` is the link to the engine, `up` counts the bytes that went to the cloud.
    """

    def __init__(
        self, edge: EdgeModel, served: EngineAt, *, share: float, quality: Quality
    ) -> None:
        """A consult falls on every 1 / `share`-th token. Raises `UsageError` or a `CloudError`."""
        self._edge, self._served = edge, served
        self._router = Every(max(1, round(1 / share)))
        with ExitStack() as opening:
            links = [
                opening.enter_context(closing(Link(*http_target(url), quality)))
                for url in (served.url, served.gateway)
                if url is not None
            ]
            self.to_engine, self._to_gateway = links[0], links[-1]
            self._proven = EngineCloud(served.connect(self.to_engine.url))
            opening.callback(self._proven.close)
            self._proven.check(edge.tokenizer)
            self._open = opening.pop_all()

    @property
    def up(self) -> int:
        """Bytes sent over the links, requests' heads and all."""
        return sum(link.up for link in {self.to_engine, self._to_gateway})

    def decoder(self, method: Method | None) -> Decoder:
        """One that answers so; the edge alone for None."""
        if method is None:
            return Decoder(self._edge, router=self._router, policy=Policy(cloud_share=0.0))
        policy = Policy(
            threshold=0.5,
            run_ahead=RUN_AHEAD if method.ahead else 0,
            deadline=LONGEST_DEADLINE,
            on_cloud_error="raise",
        )
        edge: Any = self._edge if method.cache else UncachedEdge(self._edge)
        return Decoder(edge, router=self._router, policy=policy, cloud=self._cloud(method))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def _cloud(self, method: Method) -> CloudModel:
        if method.pushes:
            return self._gateway()
        url, tokenizer = self.to_engine.url, self._edge.tokenizer
        if method.ids and method.kept:
            return self._proven
        if method.ids:
            engine = self._served.connect(url)
        else:
            model = self._proven.engine.described.model
            engine = WrittenOut(url, tokenizer, key=self._served.key, model=model)
        cloud = PlainCloud(engine, tokenizer, kept=method.kept)
        self._open.callback(cloud.close)
        return cloud

    def _gateway(self) -> CloudModel:
        if self._served.gateway is None:
            raise UsageError("Nothing can be pushed to an engine", hint="put a gateway before it")
        cloud = GatewayCloud(self._to_gateway.url, key=self._served.key)
        self._open.callback(cloud.close)
        cloud.check(self._edge.tokenizer)
        return cloud
