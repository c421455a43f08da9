"""Real processes that are attacked: whether they live, what they log, and their end."""

import json
import queue
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.shared import until
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server_process import free_port

HEALTH_SECONDS = 0.2
"""Between a gateway's looks at its engines here: nobody wants to wait for the usual ones."""

FILES = 1024
"""Open files that an attacked server may have: what a shell gives it."""

START_SECONDS = 60.0
ANSWER_SECONDS = 60.0

_GATEWAY = f"""
from edgewise.engines import vocabulary_check as check
from edgewise.gateway import fleet
fleet.HEALTH_SECONDS = {HEALTH_SECONDS}
# An engine that stops in the middle of a check may leave it unanswered.
check.CHECK_SECONDS *= {HEALTH_SECONDS} / 2.0
check.PROBE_SECONDS *= {HEALTH_SECONDS} / 2.0
from edgewise.cli.main import main
main()
"""


class Service:
    """A server on a port of its own."""

    def __init__(self, command: Sequence[str], log: Path, *, ready: str = "/health") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [*command, "--port", str(self.port)]
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Until it is ready; raises `TimeoutError`."""
        with self.log.open("ab") as told:
            self._process = subprocess.Popen(
                self._command, stdout=told, stderr=told, preexec_fn=_few_files
            )
        self.until_ready()

    def until_ready(self, seconds: float = START_SECONDS) -> None:
        if not until(lambda: self.is_ready() or not self.alive, seconds) or not self.alive:
            raise TimeoutError(f"{self._command}: {self.log.read_text()[-500:]}")

    def is_ready(self) -> bool:
        try:
            reply = httpx2.get(self.url + self._ready, timeout=2, trust_env=False)
            return reply.is_success
        except httpx2.TransportError:
            return False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self) -> int:
        """1 where it has ended, though nobody ended it: then it is started again."""
        if self.alive:
            return 0
        self.start()
        return 1

    def kill(self) -> None:
        """At once, as a machine dies."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to end; it may take its time."""
        assert self._process is not None
        self._process.terminate()

    def wait(self, seconds: float = 30.0) -> None:
        assert self._process is not None
        self._process.wait(seconds)

    def close(self) -> None:
        if self.alive:
            self.kill()

    @property
    def logged(self) -> int:
        """Bytes, so far."""
        return self.log.stat().st_size


def gateway_service(
    stack: ExitStack, engines: Sequence[str], folder: Path, *options: str, name: str = "gateway"
) -> Service:
    """`edgewise gateway`, which looks at its engines more often than usual."""
    named = [word for url in engines for word in ("--engine", url)]
    command = [sys.executable, "-c", _GATEWAY, "gateway", *named, *options]
    return stack.enter_context(closing(Service(command, folder / f"{name}.log", ready="/ready")))


def serve_service(stack: ExitStack, folder: Path) -> Service:
    """`edgewise serve` with the bundled edge model alone."""
    command = [sys.executable, "-m", "edgewise", "serve", "--cloud", "none", "--threads", "1"]
    return stack.enter_context(closing(Service(command, folder / "serve.log")))


def watched(engine: ScriptedEngine, seconds: float = 6.0) -> bool:
    """Whether the gateway still looks at this engine."""
    looks = engine.looks
    return until(lambda: engine.looks != looks, seconds)


class Device:
    """A device with a real edge model in a process of its own, which may be ended by what it gets.

    `ended` counts how often it was.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._opened: dict[str, Any] | None = None
        self._start()

    def open(self, url: str, engine: str, key: str | None = None) -> dict[str, Any]:
        """Reach a cloud and prove the vocabulary."""
        order = {"do": "open", "url": url, "engine": engine, "key": key}
        reply = self._order(order)
        self._opened = order
        return reply

    def answer(self, deadline: float, tokens: int, verify: str = "off") -> dict[str, Any]:
        """An answer whose every token is asked for, or read: ids and reasons, or "error"."""
        return self._order(
            {"do": "answer", "deadline": deadline, "tokens": tokens, "verify": verify}
        )

    def alone(self, tokens: int) -> dict[str, Any]:
        """What the edge writes by itself."""
        return self._order({"do": "alone", "tokens": tokens})

    def kill(self) -> None:
        """As what it gets might."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._replies.get(timeout=ANSWER_SECONDS))
        except (BrokenPipeError, ValueError, queue.Empty):
            code = self._process.poll()
            how = "it hangs" if code is None else f"it ended with {code}"
            self.ended += code is not None
            self.close()
            self._start()
            if self._opened is not None and order["do"] != "open":
                self._order(self._opened)
            return {"error": how, "own": False}

    def _start(self) -> None:
        command = [sys.executable, "-m", "benchmarks.faults.device"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._replies: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process, self._replies))
        self._reader.start()

    @staticmethod
    def _read(process: "subprocess.Popen[bytes]", replies: "queue.Queue[bytes]") -> None:
        assert process.stdout is not None
        for said in process.stdout:
            replies.put(said)
        # Nothing more comes: whoever waits shall not.
        replies.put(b"")


def _few_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
