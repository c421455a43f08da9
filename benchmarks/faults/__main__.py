"""Every fault between device, gateway and engine: `python -m benchmarks.faults`.

Groups of faults, each tried at least sixteen times, at every token of an answer where it strikes
answers. Prints Markdown: how often a fault was tried and was seen to happen, the answers that were
lost (those that did not end, or are not what was to be written), the processes that ended though
nobody ended them, the watchers that look at their engines no more. Exit code 1 where there is any,
or where a fault did not happen.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable

import structlog

from benchmarks.faults.clients import client_faults, revocation_faults
from benchmarks.faults.engines import engine_faults
from benchmarks.faults.gateways import gateway_faults
from benchmarks.faults.hostile_replies import lies_to_the_watch, probes, replies
from benchmarks.faults.parsers import parser_faults
from benchmarks.faults.rig import link_faults
from benchmarks.faults.table import Row, failures, table

GROUPS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "link": ("Between device and engine, before every token", link_faults),
    "replies": ("Hostile replies, at every token, straight and through a gateway", replies),
    "probes": ("Hostile replies while a device probes an engine", probes),
    "watch": ("Hostile replies to a gateway's watch", lies_to_the_watch),
    "engines": ("Engines that go, or come back as another", engine_faults),
    "gateways": ("Two gateways", gateway_faults),
    "revocation": ("Revoked keys", revocation_faults),
    "clients": ("Hostile clients", client_faults),
    "parsers": ("Bytes from outside", parser_faults),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed: list[str] = []
    for name in options.only:
        title, run = GROUPS[name]
        begun = time.monotonic()
        rows = run()
        print("\n".join(table(title, rows)), flush=True)
        print(f"{time.monotonic() - begun:.0f} s.\n", flush=True)
        failed += failures(rows)
    if failed:
        print(f"Failed: {'; '.join(failed)}.")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
