"""A gateway in this process: real sockets, an event loop in a thread of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2

from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import Engine
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.gateway.app import Gateway
from edgewise.gateway.browser_page import FOLDER, Page, PageModel
from edgewise.gateway.fleet import Fleet
from edgewise.gateway.sessions import Sessions
from edgewise.keys.keys import Keys
from edgewise.keys.limit_stores import SqliteLimits
from edgewise.keys.limits import KeyLimits, LimitStore
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.listening.running import in_thread
from tests.server_process import free_port

BYTES = ByteTokenizer()


class Running(NamedTuple):
    """Where the gateway listens, and the object itself."""

    url: str
    gateway: Gateway

    def metrics(self) -> str:
        """All of them, as Prometheus reads them."""
        return httpx2.get(f"{self.url}/metrics", trust_env=False, timeout=60).text


@contextmanager
def gateway(
    engines: Sequence[str | Engine],
    *,
    keys: Path | None = None,
    port: int | None = None,
    limits: LimitStore | None = None,
    most: int = 1000,
    most_ids: int = 1_000_000,
    idle: float = 60.0,
    concurrency: int = 16,
    queue: int = 64,
    origins: Sequence[str] = (),
    page: PageModel | None = None,
    folder: Path = FOLDER,
) -> Iterator[Running]:
    """Serve until the block ends, which kills it: connections are cut, sessions are lost.

    `page` has its files in `folder`.
    """
    made = Gateway(
        Fleet([_engine(one) for one in engines], concurrency=concurrency, queue=queue),
        Keys(keys),
        Sessions(most=most, most_ids=most_ids, idle=idle),
        KeyLimits(limits or SqliteLimits(None)),
    )
    shown = page and Page(page, made.fleet, keys=keys is not None, folder=folder)

    async def begin() -> None:
        await made.limits.open()
        await made.fleet.start()

    port = port or free_port()
    with in_thread(made.app(origins=origins, page=shown), port, most=10_000, begin=begin):
        yield Running(f"http://127.0.0.1:{port}", made)


@contextmanager
def device(
    running: Running, key: str | None = None, *, tokenizer: Tokenizer = BYTES
) -> Iterator[GatewayCloud]:
    """A device's cloud that was checked, until the block ends."""
    cloud = GatewayCloud(running.url, key=key)
    try:
        cloud.check_vocabulary(tokenizer)
        yield cloud
    finally:
        cloud.close()


def _engine(one: str | Engine) -> Engine:
    return LlamaServerEngine(one) if isinstance(one, str) else one
