"""What a consult weighs on the wire: `python -m benchmarks.gateway_bytes`.

After 16 new tokens of the edge, through a gateway and straight to the engine (llama-server's
form), for prompts of several lengths: bytes of TCP payload each way, counted by a proxy between
device and server, WebSocket and HTTP framing included; candidates are asked for. The frames alone
are in the tests. Prints Markdown.
"""

import argparse
import time
from contextlib import ExitStack

import structlog

from benchmarks.markdown import line
from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.testing.scripted_engine import ScriptedEngine
from tests.gateway.running import gateway

NEW = 16
LARGE = 140_000
"""Ids of a vocabulary like Qwen's: five bytes each in msgpack, seven in JSON."""


def weighed(cloud: CloudModel, link: Link, length: int) -> tuple[int, int]:
    """Bytes up and down of the second consult of an answer."""
    cloud.check(ByteTokenizer())
    prompt = [LARGE + i for i in range(length)]
    session = cloud.open(Prompt(tuple(prompt)))
    session.ask(prompt, 1, Sampling(), 10).result()
    time.sleep(0.05)
    up, down = link.up, link.down
    session.ask([*prompt, *range(LARGE, LARGE + NEW)], 1, Sampling(), 10).result()
    time.sleep(0.05)
    return link.up - up, link.down - down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=(100, 1000, 4000))
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    head = ["prompt, ids", "gateway: up", "down", "direct: up", "down"]
    lines = line(head, head=True)
    with ExitStack() as stack:
        engine = ScriptedEngine()
        stack.callback(engine.close)
        running = stack.enter_context(gateway([engine.url]))
        for length in options.prompts:
            cells = [str(length)]
            for kind, url in ((GatewayCloud, running.url), (LlamaServer, engine.url)):
                link = Link("127.0.0.1", int(url.rpartition(":")[2]))
                cloud = kind(link.url)
                cells += map(str, weighed(cloud, link, length))
                cloud.close()
                link.close()
            lines += line(cells)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
