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
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
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

ROUNDS = 16
DEADLINE, PATIENCE = 30.0, 90.0
"""Seconds of a consult, and that a fleet has to recover."""

HEAD = [
    "router",
    "ids reused",
    "anew",
    "a consult's median",
    "lost at the kill",
    "lost later",
    "anew",
    "all answered after",
    "lost at the return",
    "anew",
    "used again after",
]

_IDS = range(300, 4000)
_METERS = {
    "llama-server": ("llamacpp:prompt_tokens_total", "", "llamacpp:requests_processing"),
    "vllm": (
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_requests_running",
    ),
}


class RealEngine:
    """An engine's process, which may be killed and started again at its address."""

    def __init__(self, kind: str, sessions: int, folder: Path) -> None:
        self._kind, self._sessions, self._folder = kind, sessions, folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._running = ExitStack()
        self._pid = 0

    def start(self) -> None:
        """Until it is ready."""
        before = _children()
        if self._kind == "vllm":
            python = Path(os.environ["VLLM_PYTHON"])
            self._running.enter_context(vllm(python, self._folder, port=self.port))
            # Its first request compiles.
            body = {"model": "pocket", "prompt": [300, 301], "max_tokens": 1}
            httpx2.post(f"{self.url}/v1/completions", json=body, timeout=300, trust_env=False)
        else:
            # It chooses slots itself, by what they hold: each keeps every session.
            flags = {"cache_ram_mib": 0, "kv_unified": False, "endpoint_metrics": True}
            flags |= {"n_parallel": self._sessions, "n_ctx": 512 * self._sessions}
            served = llama_server(bundled("cloud"), port=self.port, flags=flags)
            self._running.enter_context(served)
        (self._pid,) = _children() - before

    def kill(self) -> None:
        """SIGKILL, to the processes that it has started too."""
        for pid in (*_children(self._pid), self._pid):
            os.kill(pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._running.close()

    @property
    def computed(self) -> float:
        """Ids of prompts that it has computed since it started."""
        asked, hits, _ = _METERS[self._kind]
        return self._meter(asked) - (self._meter(hits) if hits else 0)

    @property
    def running(self) -> float:
        """Requests in it."""
        return self._meter(_METERS[self._kind][2])

    def _meter(self, name: str) -> float:
        text = httpx2.get(f"{self.url}/metrics", timeout=30, trust_env=False).text
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


class Round(NamedTuple):
    """Consults of all sessions, one each: the ids asked about, seconds, what was lost or computed.

    `anew`: sessions of which the engine held less than half.
    """

    asked: int
    seconds: list[float]
    lost: Counter[str]
    anew: int


class Devices:
    """Sessions of random ids."""

    def __init__(self, cloud: GatewayCloud, count: int, seed: str) -> None:
        self._rng = random.Random(seed)
        self._held = [self._more(PROMPT) for _ in range(count)]
        self._sessions = [cloud.open(Prompt(())) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._held)

    def round(
        self, new: int = 0, *, n: int = 1, meanwhile: Callable[[], None] = lambda: None
    ) -> Round:
        """Every session has written `new` ids, and asks for `n` tokens; all at once."""
        begun, seconds, lost, anew = time.perf_counter(), list[float](), Counter[str](), 0
        asked = list[Future[Completion]]()
        for session, ids in zip(self._sessions, self._held, strict=True):
            ids += self._more(new)
            asked.append(session.ask(ConsultRequest(tuple(ids), n, DEADLINE)))
            asked[-1].add_done_callback(lambda _: seconds.append(time.perf_counter() - begun))
        meanwhile()
        for future, ids in zip(asked, self._held, strict=True):
            try:
                anew += (future.result().computed or 0) > len(ids) / 2
            except CloudError as error:
                lost[error.reason] += 1
        return Round(sum(map(len, self._held)), seconds, lost, anew)

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
            cloud.check(edge.tokenizer)
        devices = Devices(cloud, count, arm)
        devices.round()
        before = sum(engine.computed for engine in engines)
        rounds = [devices.round(NEW) for _ in range(ROUNDS)]
        computed = sum(engine.computed for engine in engines) - before
        reused = 1 - computed / sum(one.asked for one in rounds)
        median = statistics.median(second for one in rounds for second in one.seconds)
        broken = engines[0]
        cut = devices.round(n=LONG, meanwhile=lambda: _kill_busy(broken))
        killed = _until(devices, lambda one: not one.lost)
        broken.start()
        begun = broken.computed
        back = _until(devices, lambda _: broken.computed - begun >= PROMPT)
    killed = killed._replace(anew=cut.anew + killed.anew)
    steady = [f"{reused:.1%}", str(sum(one.anew for one in rounds)), f"{1000 * median:.0f} ms"]
    return [arm, *steady, f"{cut.lost.total()} of {count}", *killed.cells, *back.cells]


def _until(devices: Devices, well: Callable[[Round], bool]) -> Disturbed:
    """Rounds until one is well."""
    begun, lost, anew = time.monotonic(), Counter[str](), 0
    while (passed := time.monotonic() - begun) < PATIENCE:
        one = devices.round()
        lost, anew = lost + one.lost, anew + one.anew
        if well(one):
            return Disturbed(lost, anew, passed)
        time.sleep(0.25)
    return Disturbed(lost, anew, math.inf)


def _kill_busy(engine: RealEngine) -> None:
    while not engine.running:
        time.sleep(0.001)
    engine.kill()


def _children(pid: int | None = None) -> set[int]:
    """Processes that a process has started."""
    own = pid or os.getpid()
    tasks = Path(f"/proc/{own}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


@contextmanager
def _gateway(addresses: Sequence[str], folder: Path) -> Generator[str]:
    port = free_port()
    command = [sys.executable, "-m", "edgewise", "gateway", "--port", str(port)]
    command += [word for address in addresses for word in ("--engine", address)]
    url = f"http://127.0.0.1:{port}"
    with server_process(command, f"{url}/ready", log=folder / "gateway.log"):
        yield url


@contextmanager
def _router(command: str, engines: Sequence[RealEngine], folder: Path) -> Generator[str]:
    port, named = free_port(), " ".join(engine.url for engine in engines)
    words = shlex.split(command.format(port=port, engines=named, metrics=free_port()))
    url = f"http://127.0.0.1:{port}"
    with server_process(words, f"{url}/health", log=folder / "router.log"):
        yield url


def _vllm_model(folder: Path) -> None:
    script = Path(__file__).parents[1] / "tests" / "vllm_model.py"
    command = [os.environ["VLLM_PYTHON"], str(script), str(bundled("cloud")), str(folder)]
    subprocess.run(command, check=True, capture_output=True)


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
            _vllm_model(folder)
        engines = [RealEngine(given.engine, given.sessions, folder) for _ in range(2)]
        for engine in engines:
            engine.start()
            stack.callback(engine.close)
        with _gateway([engine.url for engine in engines], folder) as url:
            print(*line(measured("the gateway alone", url, engines, given.sessions)), flush=True)
        for command in given.router:
            with _router(command, engines, folder) as router, _gateway([router], folder) as url:
                print(*line(measured(command, url, engines, given.sessions)), flush=True)


if __name__ == "__main__":
    main()
