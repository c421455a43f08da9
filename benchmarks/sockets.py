"""What each engine asks of the system: `python -m benchmarks.sockets` (Linux, needs strace).

`--cloud none` promises that no socket is opened, and an answer leaves no file behind. Every engine
that is installed loads the bundled edge model in its own form and answers now and then for 90 s
with the cloud `none`, each in a process of its own under a tracer of system calls: it, its threads
and its children. They have a home without anything in it, and none of the variables by which
libraries are told to be silent; `CI` is not set, which some take for one. Listed are sockets but
for `NAMES`, and files written outside `ALLOWED`; the exit status is 1 where there are any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine_models import installed, models_for
from benchmarks.markdown import line
from edgewise.addresses import bundled
from edgewise.pair import Pair

ALLOWED = ("/dev/null", "/dev/tty", "/proc/self", ".cache/edgewise", "tmp")
"""What any process may write, Edgewise's list of files that were tried, and the folder for
temporary files, of which none may be left; what is relative lies in the home of the run."""

COMPILED = "torchinductor_"
"""How torch's folder for what it compiles begins; importing it makes one among temporary files."""

NAMES = "/var/run/nscd/socket"
"""A socket within the machine, at which the C library asks for the name of the user; torch wants to
know it for that folder where no variable tells."""

QUESTION, TOKENS, PAUSE = "Tell me about copper.", 16, 2.0
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL")
"""Variables that a traced process inherits."""

_NETWORK = ("socket", "connect", "bind", "sendto", "sendmsg", "sendmmsg")
_OPEN = ("open", "openat", "creat")
_OTHER = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat")
_CALL = re.compile(r"^\d+\s+(\w+)\((.*)")
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')
_WRITES = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b")


class Traced(NamedTuple):
    """A process that has ended: what it printed, and the calls that are of interest."""

    status: int
    printed: str
    calls: int
    sockets: tuple[str, ...]
    files: tuple[str, ...]


class Trace:
    """A process under the tracer, in a home of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._home = folder
        for name in ("tmp", ".cache"):
            (folder / name).mkdir(parents=True)
        self._lines = folder.with_name(f"{folder.name}.strace")
        calls = ",".join((*_NETWORK, *_OPEN, *_OTHER))
        tracer = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-s", "400"]
        # The tracer skips calls that this machine does not have.
        wanted = ",".join(f"?{name}" for name in calls.split(","))
        self._process = subprocess.Popen(
            [*tracer, "-e", f"trace={wanted}", "-o", str(self._lines), *command],
            env=environment(os.environ, folder),
            stdout=subprocess.PIPE,
            text=True,
        )

    def ended(self) -> Traced:
        """Waits for the end."""
        printed, _ = self._process.communicate()
        with self._lines.open(errors="replace") as lines:
            found = list(calls_in(lines))
        return Traced(
            self._process.returncode,
            printed.strip(),
            len(found),
            tuple(told for name, told in found if name in _NETWORK and leads_out(told)),
            (*written(found, self._home), *self._left()),
        )

    def _left(self) -> Iterator[str]:
        """Temporary files that are still there."""
        folder = self._home / "tmp"
        for place in sorted(folder.rglob("*")):
            if not place.relative_to(folder).parts[0].startswith(COMPILED):
                yield f"left {place}"


def environment(given: Mapping[str, str], home: Path) -> dict[str, str]:
    """Nothing that a library may take for a wish to be silent."""
    kept = {name: given[name] for name in KEPT if name in given}
    places = {"HOME": home, "TMPDIR": home / "tmp", "XDG_CACHE_HOME": home / ".cache"}
    return {
        **kept,
        **{name: str(place) for name, place in places.items()},
        # Compiled modules are Python's, not the engines'.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def calls_in(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names of calls and their arguments; what is resumed was told when it began."""
    for text in lines:
        if found := _CALL.match(text):
            yield found[1], found[2].strip()


def leads_out(told: str) -> bool:
    """Whether a socket's call is more than the C library's question for the user's name."""
    if "sa_family=" in told:
        return f'"{NAMES}"' not in told
    return told.startswith("AF_") and not told.startswith("AF_UNIX")


def written(calls: Iterable[tuple[str, str]], home: Path) -> Iterator[str]:
    """Files that were made, or opened to be written, where none may be."""
    for name, told in calls:
        if name in _NETWORK or (name in ("open", "openat") and not _WRITES.search(_flags(told))):
            continue
        for place in _places(told):
            if not _allowed(place, home):
                yield f"{name} {place}"


def _flags(told: str) -> str:
    """What stands behind the path."""
    found = _PATH.search(told)
    return told[found.end() :].partition(" = ")[0] if found else told


def _places(told: str) -> Iterator[Path]:
    for found in _PATH.finditer(told.partition(" = ")[0]):
        yield Path(found["folder"] or "/") / found["path"]


def _allowed(place: Path, home: Path) -> bool:
    where = Path(os.path.normpath(place))
    return any(where.is_relative_to(home / allowed) for allowed in ALLOWED)


def missing() -> str | None:
    """Why nothing can be traced here."""
    if shutil.which("strace") is None:
        return "strace is missing: apt-get install strace"
    command = ["strace", "-f", "-qq", sys.executable, "-c", ""]
    tried = subprocess.run(command, capture_output=True, check=False)
    return "strace may not trace processes here" if tried.returncode else None


def start(engine: str, model: Path, seconds: float, folder: Path) -> Trace:
    command = [sys.executable, "-m", "benchmarks.sockets", "--worker", engine, str(model)]
    return Trace([*command, "--seconds", str(seconds)], folder)


def work(engine: str, address: str, seconds: float) -> None:
    """Answers until the time after loading is over; says how many."""
    answers = 0
    with Pair(
        address, cloud="none", edge_engine=engine, router="entropy", threads=1, max_tokens=TOKENS
    ) as pair:
        end = time.monotonic() + seconds
        while not answers or time.monotonic() < end:
            answers += bool(pair.ask(QUESTION).text)
            time.sleep(max(0.0, min(PAUSE, end - time.monotonic())))
    print(answers)


def main(arguments: Sequence[str] | None = None) -> None:
    here = installed()
    parser = argparse.ArgumentParser(prog="benchmarks.sockets", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=here, default=here)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(*options.worker, options.seconds)
        return
    if told := missing():
        sys.exit(told)
    with tempfile.TemporaryDirectory() as temporary:
        # A bundled file would not be tried in a process of its own, as a user's is.
        model = Path(shutil.copy(bundled("edge"), Path(temporary) / "edge.gguf"))
        models = models_for(options.engines, model, Path(temporary))
        traces = {
            engine: start(engine, model, options.seconds, Path(temporary) / f"home-{engine}")
            for engine, model in models.items()
        }
        found = {engine: trace.ended() for engine, trace in traces.items()}
    lines = line(["engine", "answers", "calls looked at", "sockets", "files"], head=True)
    for engine, one in found.items():
        counts = (one.calls, len(one.sockets), len(one.files))
        lines += line([f"`{engine}`", one.printed or "failed", *map(str, counts)])
    for engine, one in found.items():
        lines += [f"{engine}: {told}" for told in (*one.sockets, *one.files)]
    print("\n".join(lines))
    print(f"\nEach answered for {options.seconds:.0f} s after it had loaded.")
    sys.exit(any(one.status or one.sockets or one.files for one in found.values()))


if __name__ == "__main__":
    main()
