"""Whether somebody else's router may stand between a gateway and its engines.

    python -m benchmarks.fleet_routers vllm --router "vllm-router --host 127.0.0.1 --port {port}
        --worker-urls {engines} --policy consistent_hash --prometheus-port {metrics}"

Two real engines with the bundled model (vLLM: `VLLM_PYTHON`), a gateway process that has both
addresses, then one that has the router's alone. Sessions of random ids grow and are asked for one
token each round; the engines' own meters say how many ids were computed. Then one engine is killed
in the middle of its sessions' answers, and later started again at its address. Prints Markdown.
"""

import argparse
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2

from edgewise.addresses import bundled
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.gateway import GatewayCloud
from edgewise.completion import Completion
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudError
from edgewise.prompts import Prompt
from edgewise_lab.tables import line
from tests.llama_server_process import llama_server
from tests.server_process import free_port, server_process
from tests.vllm_process import vllm

PROMPT, NEW, LONG = 160, 8, 64
"""Ids of a prompt, ids that a session has written between two consults, tokens of a long answer."""

ROUNDS, DEADLINE, PATIENCE = 16, 30.0, 90.0
"""Consults of a session; seconds of a consult, and that a fleet has to recover."""

HEAD = [
    *("router", "ids reused", "anew", "lost at the kill", "lost later", "anew"),
    *("all answered after", "lost at the return", "anew", "used again after"),
]

_IDS = range(300, 4000)
_MODEL_SCRIPT = Path(__file__).parents[1] / "tests" / "vllm_model.py"
_METERS = {
    "llama-server": ("prompt_tokens_total", "", "requests_processing"),
    "vllm": ("prompt_tokens_total", "prefix_cache_hits_total", "num_requests_running"),
}
"""Ids of prompts, those of them that were cached, requests in it."""


class RealEngine:
    """An engine's process, which may be killed and started again at its address."""

    def __init__(self, kind: str, sessions: int, folder: Path) -> None:
        self._kind, self._sessions, self._folder = kind, sessions, folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.running = ExitStack()
        self._pid = 0

    def start(self) -> None:
        """Until it is ready."""
        before = _children()
        if self._kind == "vllm":
            python = Path(os.environ["VLLM_PYTHON"])
            self.running.enter_context(vllm(python, self._folder, port=self.port))
            # Its first request compiles.
            body = {"model": "pocket", "prompt": [300, 301], "max_tokens": 1}
            httpx2.post(f"{self.url}/v1/completions", json=body, timeout=300, trust_env=False)
        else:
            # It chooses slots itself, by what they hold: each keeps every session.
            flags = {"cache_ram_mib": 0, "kv_unified": False, "endpoint_metrics": True}
            flags |= {"n_parallel": self._sessions, "n_ctx": 512 * self._sessions}
            self.running.enter_context(llama_server(bundled("cloud"), port=self.port, flags=flags))
        (self._pid,) = _children() - before

    def kill(self) -> None:
        """SIGKILL in the middle of a request, to the processes that it has started too."""
        while not self._meter(_METERS[self._kind][2]):
            time.sleep(0.001)
        for pid in (*_children(self._pid), self._pid):
            os.kill(pid, signal.SIGKILL)
        self.running.close()

    @property
    def computed(self) -> float:
        """Ids of prompts that it has computed since it started."""
        asked, hits, _ = _METERS[self._kind]
        return self._meter(asked) - (self._meter(hits) if hits else 0)

    def _meter(self, name: str) -> float:
        text = httpx2.get(f"{self.url}/metrics", timeout=30, trust_env=False).text
        found = re.findall(rf"^\w+:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


class Round(NamedTuple):
    """Consults of all sessions, one each: the ids asked about, and what was lost.

    `anew`: sessions of which the engine held less than half.
    """

    asked: int
    lost: Counter[str]
    anew: int


class Devices:
    """Sessions of random ids."""

    def __init__(self, cloud: GatewayCloud, count: int, seed: str) -> None:
        self._rng = random.Random(seed)
        self._held = [self._more(PROMPT) for _ in range(count)]
        self._sessions = [cloud.open(Prompt(())) for _ in range(count)]

    def round(
        self, new: int = 0, *, n: int = 1, meanwhile: Callable[[], None] = lambda: None
    ) -> Round:
        """Every session has written `new` ids, and asks for `n` tokens; all at once."""
        lost, anew = Counter[str](), 0
        asked = list[Future[Completion]]()
        for session, ids in zip(self._sessions, self._held, strict=True):
            ids += self._more(new)
            asked.append(session.ask(ConsultRequest(tuple(ids), n, DEADLINE)))
        meanwhile()
        for future, ids in zip(asked, self._held, strict=True):
            try:
                anew += (future.result().computed or 0) > len(ids) / 2
            except CloudError as error:
                lost[error.reason] += 1
        return Round(sum(map(len, self._held)), lost, anew)

    def _more(self, count: int) -> list[int]:
        return self._rng.choices(_IDS, k=count)


class Disturbed(NamedTuple):
    """Consults lost, sessions computed anew, seconds until all was well again (inf: never)."""

    lost: Counter[str]
    anew: int
    seconds: float

    @property
    def cells(self) -> list[str]:
        lost = ", ".join(f"{count} {reason}" for reason, count in self.lost.items())
        return [lost or "0", str(self.anew), f"{self.seconds:.1f} s"]


def measured(arm: str, url: str, engines: Sequence[RealEngine], count: int) -> list[str]:
    """A line of the table: through the gateway at `url`."""
    with closing(GatewayCloud(url)) as cloud:
        with LlamaModel(bundled("edge"), threads=1) as edge:
            cloud.check_vocabulary(edge.tokenizer)
        devices = Devices(cloud, count, arm)
        devices.round()
        before = sum(engine.computed for engine in engines)
        rounds = [devices.round(NEW) for _ in range(ROUNDS)]
        computed = sum(engine.computed for engine in engines) - before
        reused = 1 - computed / sum(one.asked for one in rounds)
        broken = engines[0]
        cut = devices.round(n=LONG, meanwhile=broken.kill)
        killed = _until(devices, lambda one: not one.lost)
        broken.start()
        begun = broken.computed
        back = _until(devices, lambda _: broken.computed - begun >= PROMPT)
    killed = killed._replace(anew=cut.anew + killed.anew)
    steady = [f"{reused:.1%}", str(sum(one.anew for one in rounds))]
    return [arm, *steady, f"{cut.lost.total()} of {count}", *killed.cells, *back.cells]


def _until(devices: Devices, well: Callable[[Round], bool]) -> Disturbed:
    """Rounds until one is well."""
    begun, lost, anew = time.monotonic(), Counter[str](), 0
    while time.monotonic() - begun < PATIENCE:
        one = devices.round()
        lost, anew = lost + one.lost, anew + one.anew
        if well(one):
            return Disturbed(lost, anew, time.monotonic() - begun)
        time.sleep(0.25)
    return Disturbed(lost, anew, math.inf)


def _children(pid: int | None = None) -> set[int]:
    """Processes that a process has started."""
    tasks = Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


@contextmanager
def _serving(words: Sequence[str], port: int, ready: str, log: Path) -> Generator[str]:
    url = f"http://127.0.0.1:{port}"
    with server_process(words, url + ready, log=log):
        yield url


def _gateway(addresses: Sequence[str], log: Path) -> AbstractContextManager[str]:
    port = free_port()
    command = [sys.executable, "-m", "edgewise", "gateway", "--port", str(port)]
    command += [word for address in addresses for word in ("--engine", address)]
    return _serving(command, port, "/ready", log)


def _router(command: str, engines: Sequence[RealEngine], log: Path) -> AbstractContextManager[str]:
    port, named = free_port(), " ".join(engine.url for engine in engines)
    words = shlex.split(command.format(port=port, engines=named, metrics=free_port()))
    return _serving(words, port, "/health", log)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=_METERS)
    parser.add_argument("--router", action="append", default=[], help="its command; see above")
    parser.add_argument("--sessions", type=int, default=16)
    given = parser.parse_args()
    for cell in line(HEAD, head=True):
        print(cell)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if given.engine == "vllm":
            made = [os.environ["VLLM_PYTHON"], _MODEL_SCRIPT, bundled("cloud"), folder]
            subprocess.run(made, check=True, capture_output=True)
        engines = [RealEngine(given.engine, given.sessions, folder) for _ in range(2)]
        for engine in engines:
            engine.start()
            stack.callback(engine.running.close)
        log = folder / "gateway.log"
        with _gateway([engine.url for engine in engines], log) as url:
            print(*line(measured("the gateway alone", url, engines, given.sessions)), flush=True)
        for command in given.router:
            router = _router(command, engines, folder / "router.log")
            with router as address, _gateway([address], log) as url:
                print(*line(measured(command, url, engines, given.sessions)), flush=True)


if __name__ == "__main__":
    main()
