"""Every fault between device, gateway and engine: `python -m benchmarks.faults`.

Groups of faults, each tried at least sixteen times, at every token of an answer where it strikes
answers. Prints Markdown: how often a fault was tried and was seen to happen, the answers that were
lost (those that did not end, or are not what was to be written), the processes that ended though
nobody ended them, the watchers that look at their engines no more. Exit code 1 where there is any,
or where a fault did not happen.
"""

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from benchmarks.faults.clients import client_faults, revocation_faults
from benchmarks.faults.engines import engine_faults
from benchmarks.faults.gateways import gateway_faults
from benchmarks.faults.hostile_replies import (
    lies_to_the_watch,
    probes,
    replies,
    verified_replies,
)
from benchmarks.faults.parsers import model_file_faults, parser_faults
from benchmarks.faults.rig import link_faults, verified_faults
from benchmarks.faults.table import Row, failures, table

GROUPS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "parsers": ("Bytes from outside", parser_faults),
    "replies": ("Hostile replies, at every token, straight and through a gateway", replies),
    "engines": ("Engines that go, or come back as another", engine_faults),
    "link": ("Between device and engine, before every token", link_faults),
    "verified": ("The same while the cloud reads along", verified_faults),
    "verdicts": ("Hostile replies to a device whose cloud reads along", verified_replies),
    "probes": ("Hostile replies while a device probes an engine", probes),
    "models": ("Broken model files", model_file_faults),
    "watch": ("Hostile replies to a gateway's watch", lies_to_the_watch),
    "gateways": ("Two gateways", gateway_faults),
    "revocation": ("Revoked keys", revocation_faults),
    "clients": ("Hostile clients", client_faults),
}
"""The longest first, so that none is left alone at the end."""

ALONE = ("clients",)
"""Groups that leave no time for others beside them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--lanes", type=int, default=2, help="groups side by side")
    options = parser.parse_args()
    if len(options.only) == 1:
        sys.exit(_run(options.only[0]))
    crowd = [name for name in options.only if name not in ALONE]
    with ThreadPoolExecutor(options.lanes) as lanes:
        done = list(lanes.map(_apart, crowd))
    done += [_apart(name) for name in options.only if name in ALONE]
    sys.exit(int(any(done)))


def _apart(name: str) -> int:
    """A group in a process of its own, which a fault may end; what it says is shown at its end."""
    command = [sys.executable, "-m", "benchmarks.faults", "--only", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        print(f"The group {name} itself ended with {done.returncode}.")
    print(done.stdout, flush=True)
    return int(done.returncode != 0)


def _run(name: str) -> int:
    """1 where something failed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    title, run = GROUPS[name]
    begun = time.monotonic()
    rows = run()
    failed = failures(rows)
    print("\n".join(table(title, rows)))
    print(f"{time.monotonic() - begun:.0f} s.{' Failed: ' if failed else ''}{'; '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    main()
