"""A thousand sessions while gateway and engine are killed: `python -m benchmarks.load_faults`.

Real decoders with scripted edge models, a thread each in a few processes, ask at a fixed rate
through a real gateway over an engine, all of them processes. First gateway and engine are each
killed (SIGKILL) and started again; then quiet rounds alternate with rounds beside 1,100 silent
connections. Every answer must be whole, every token what the engine writes when nobody disturbs it
or the edge's own with a reason. Prints Markdown; exit code 1 where one is not, or where consults
beside silent connections have more than twice the quiet p99.
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import httpx2
import msgspec
import numpy as np

from benchmarks.faults.attacks import SILENT, attacked, silent
from benchmarks.load_devices import Report
from edgewise.addresses import bundled
from edgewise.wire.protocol import PATH
from edgewise_lab.tables import line
from tests.doubles.scripted_engine import reply_to
from tests.llama_server_process import free_port

DOWN_SECONDS = 1.0
"""How long what was killed stays away, beside the time it takes to start."""

START_SECONDS = 60.0

_LLAMA = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_ctx, params.n_parallel = 4096, 8
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
sys.stdin.read()
"""

Action = tuple[float, Callable[[], None]]
"""Seconds after the beginning, and what happens then."""


class Server:
    """A process on one port, over all its lives."""

    def __init__(self, command: Sequence[str], port: int, ready: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.port, self.kills = port, 0
        self._command, self._ready = command, ready
        self._start()

    def killed_and_restarted(self) -> None:
        self._process.kill()
        self._process.wait()
        self.kills += 1
        time.sleep(DOWN_SECONDS)
        self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                if httpx2.get(self.url + self._ready, timeout=5, trust_env=False).is_success:
                    return
            except httpx2.TransportError:
                time.sleep(0.05)
        raise TimeoutError(f"{self._command} does not start")


class Site(NamedTuple):
    """What devices ask."""

    gateway: Server
    engine: Server


@contextmanager
def site(options: argparse.Namespace) -> Iterator[Site]:
    """Engine and gateway."""
    with ExitStack() as stack:
        port, python = free_port(), sys.executable
        command = [python, "-m", "tests.doubles.scripted_engine", "--port", str(port)]
        if options.engine == "llama-server":
            command = [python, "-c", _LLAMA, str(bundled("cloud")), str(port)]
        engine = Server(command, port, "/health")
        stack.callback(engine.close)
        port = free_port()
        more = shlex.split(options.gateway)
        command = [python, "-m", "edgewise", "gateway", "--engine", engine.url, *more]
        gateway = Server([*command, "--port", str(port)], port, "/ready")
        stack.callback(gateway.close)
        yield Site(gateway, engine)


def loaded(
    url: str, options: argparse.Namespace, seconds: float, actions: Sequence[Action]
) -> tuple[Report, float]:
    """What all devices saw in `seconds`, and when they began."""
    each = -(-options.sessions // options.processes)
    started: list[subprocess.Popen[str]] = []
    for first in range(0, options.sessions, each):
        counts = {"first": first, "sessions": min(each, options.sessions - first)}
        shared = {"url": url, "engine": options.engine, "of": options.sessions}
        named = {**counts, **shared, "rate": options.rate, "seconds": seconds}
        words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "benchmarks.load_devices", *words]
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begin = time.monotonic() + 1.0
    acting = threading.Thread(target=_act, args=(begin, actions))
    acting.start()
    told: list[str] = []

    def listen(process: "subprocess.Popen[str]") -> None:
        told.append(process.communicate(f"{begin}\n")[0])

    listening = [threading.Thread(target=listen, args=(process,)) for process in started]
    for thread in listening:
        thread.start()
    for thread in [*listening, acting]:
        thread.join()
    return _merged(told), begin


def _act(begin: float, actions: Sequence[Action]) -> None:
    for after, act in actions:
        time.sleep(max(0.0, begin + after - time.monotonic()))
        act()


def _merged(told: Sequence[str]) -> Report:
    whole, reasons = Report(), Counter[str]()
    for said in told:
        if not said:
            whole.lost.append("a process of devices ended")
            continue
        found = msgspec.convert(json.loads(said), Report)
        whole.answers += found.answers
        whole.wrong += found.wrong
        for name in ("lost", "consults", "written"):
            getattr(whole, name).extend(getattr(found, name))
        reasons.update(found.reasons)
    whole.reasons = dict(reasons)
    return whole


def differing(report: Report, site: Site, engine: str) -> tuple[int, int]:
    """Cloud tokens that a quiet engine does not write after the same ids, and how many were asked.

    A real engine is asked once for each prefix; nobody else asks it then.
    """
    quiet: dict[tuple[int, ...], int] = {}
    wrong = 0
    for ids, written in report.written:
        prefix = tuple(ids)
        if prefix not in quiet:
            quiet[prefix] = reply_to(ids) if engine == "scripted" else _asked(site.engine.url, ids)
        wrong += quiet[prefix] != written
    return wrong, len(quiet)


def _asked(url: str, ids: Sequence[int]) -> int:
    body = {"prompt": list(ids), "n_predict": 1, "temperature": 0, "return_tokens": True}
    reply = httpx2.post(url + "/completion", json=body, timeout=30, trust_env=False)
    return reply.json()["tokens"][0]


def killed(site: Site, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The load while both are killed, a third and two thirds of the time on."""
    seconds = options.seconds
    report, begun = loaded(
        site.gateway.url,
        options,
        seconds,
        [
            (seconds / 3, site.gateway.killed_and_restarted),
            (2 * seconds / 3, site.engine.killed_and_restarted),
        ],
    )
    wrong, prefixes = differing(report, site, options.engine)
    excused = {name: count for name, count in report.reasons.items() if name != "cloud"}
    told = ", ".join(f"{name} {count}" for name, count in sorted(excused.items()))
    lines = line(
        ["sessions", "asks/s", "seconds", "kills", "answers", "lost", "cloud tokens",
         "not a quiet engine's", "edge's own, with a reason", "wrong"],
        head=True,
    )  # fmt: skip
    # The last answers end after the time is over.
    made = len(report.consults) / (max(at for at, *_ in report.consults) - begun)
    lines += line(
        [f"{options.sessions:,}", f"{made:.0f}", f"{seconds:g}",
         f"gateway {site.gateway.kills}, engine {site.engine.kills}", f"{report.answers:,}",
         str(len(report.lost)), f"{report.reasons.get('cloud', 0):,}",
         f"{wrong} (of {prefixes:,} prefixes)", f"{sum(excused.values()):,} ({told})",
         str(report.wrong)]
    )  # fmt: skip
    lines += [f"\nLost: {why}" for why in report.lost[:5]]
    return lines, bool(report.lost or report.wrong or wrong)


def beside_silence(site: Site, options: argparse.Namespace) -> tuple[list[str], bool]:
    """Rounds in turn: quiet, and beside silent connections; p50 and p99 of answered consults."""
    length, rounds = options.round, 2 * options.rounds
    # Every session has asked twice: what it costs to open them is another figure.
    warm = 2 * options.sessions / options.rate
    with ExitStack() as stack:
        attack = ExitStack()
        stack.callback(attack.close)

        def begin() -> None:
            attack.enter_context(attacked(silent, site.gateway.port, PATH, websocket=True))

        actions: list[Action] = []
        for number in range(1, rounds, 2):
            actions += [
                (warm + number * length, begin),
                (warm + (number + 1) * length, attack.close),
            ]
        report, begun = loaded(site.gateway.url, options, warm + rounds * length, actions)
    wrong, _ = differing(report, site, options.engine)
    lines = line(["round", "consults", "unanswered", "p50, ms", "p99, ms"], head=True)
    ratio: list[float] = []
    for name, parity in (("quiet", 0), (f"beside {SILENT:,} silent", 1)):
        # The change from one to the other belongs to neither.
        mine = [
            (seconds, good)
            for at, seconds, good in report.consults
            if 0 <= (since := at - begun - warm) < rounds * length
            and int(since // length) % 2 == parity
            and since % length > length / 4
        ]
        good = [1000 * seconds for seconds, answered in mine if answered]
        p50, p99 = np.percentile(good, (50, 99)) if good else (np.inf, np.inf)
        ratio.append(float(p99))
        lines += line(
            [f"{options.rounds} x {name}", f"{len(mine):,}", str(len(mine) - len(good)),
             f"{p50:.2f}", f"{p99:.2f}"]
        )  # fmt: skip
    lines += [
        f"\n{report.answers:,} answers, {len(report.lost)} lost, {wrong + report.wrong} wrong "
        f"tokens; p99 beside silence {ratio[1] / ratio[0]:.2f} times the quiet one."
    ]
    return lines, bool(report.lost or report.wrong or wrong or ratio[1] >= 2 * ratio[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["scripted", "llama-server"], default="scripted")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0, help="consults a second, of all")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the run with kills")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--round", type=float, default=20.0, help="seconds of one")
    parser.add_argument("--processes", type=int, default=2, help="that the devices share")
    parser.add_argument("--gateway", default="", help="more options of the gateway, in one word")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    failed = False
    for run in (killed, beside_silence):
        with site(options) as made:
            lines, bad = run(made, options)
        print("\n".join([*lines, ""]), flush=True)
        failed |= bad
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
