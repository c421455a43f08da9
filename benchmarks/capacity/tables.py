"""Tables of `benchmarks.capacity`, in Markdown."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.capacity.engines import Room
from benchmarks.capacity.memory import (
    H100,
    QWEN_32B,
    QWEN_72B,
    WEIGHTS,
    computed,
    held,
    offloaded,
    streamed,
)
from benchmarks.capacity.sessions import LATE, LIMIT, Found, Load
from benchmarks.markdown import line

TOKENS = (500, 1000, 4000)
SHARES = (0.01, 0.03, 0.05, 0.07)


class Row(NamedTuple):
    """A run; `computed`: ids of prompts that the engine computed a token of the answers.

    `written`: tokens that it wrote a second.
    """

    load: Load
    found: Found
    computed: float
    written: float


def sessions_table(
    shares: Sequence[float | None], found: Sequence[Sequence[Row]], slots: int
) -> list[str]:
    """`found` are the runs that held for each share, None being the engine alone."""
    lines = line(
        ["consults", "sessions", "of cloud-only", "p50, ms", "p95", "due", "failed",
         "ids computed a token", "engine's tokens/s", "load's own CPU"],
        head=True,
    )  # fmt: skip
    base = found[0][0].load.sessions if found[0] else 0
    for share, rows in zip(shares, found, strict=True):
        name = "cloud-only" if share is None else f"{share:.0%} of tokens"
        if not rows:
            lines += line([name, "0", *["-"] * 8])
            continue
        count = rows[0].load.sessions
        ratio = f"{count / base:.2f}" if base else "-"
        at_most = " (all slots)" if count == slots else ""
        lines += line([name, f"{count}{at_most}", ratio, *_measured(rows)])
    lines += ["", _criterion()]
    if found[0]:
        first = [second for row in found[0] for second in row.found.first]
        between = [second for row in found[0] for second in row.found.between]
        lines[-1] += (
            f" Cloud-only there: first token p95 {_ms(first)} ms, between tokens p95 "
            f"{_ms(between)} ms."
        )
    return lines


def held_table(rows: Sequence[tuple[Room, "Row | str"]]) -> list[str]:
    """Runs of the same sessions with less and less room, or why there was none."""
    lines = line(
        ["KV caches", "beside them", "p50, ms", "p95", "due", "failed", "ids computed a token",
         "engine's tokens/s", "load's own CPU"],
        head=True,
    )  # fmt: skip
    for room, row in rows:
        beside = f"{room.cache_ram} MiB of memory" if room.cache_ram else "nothing"
        first = [f"{room.slots} of {room.tokens} tokens", beside]
        cells = [row, *["-"] * 6] if isinstance(row, str) else _measured([row])
        lines += line([*first, *cells])
    loads = [row.load for _, row in rows if isinstance(row, Row)]
    told = f" {loads[0].sessions} sessions that consult for {loads[0].share:.0%} of their tokens."
    return [*lines, "", _criterion() + told]


def gpu_tables(pace: float, prompt: float) -> list[str]:
    """What limits sessions on H100s, for `prompt` ids of prompts a token of an answer."""
    lines = line(
        ["model", "weights", "GPUs", *(f"{tokens:,} tokens" for tokens in TOKENS),
         "cloud-only, by steps", "arithmetic"],
        head=True,
    )  # fmt: skip
    for model in (QWEN_32B, QWEN_72B):
        for name, bits in WEIGHTS.items():
            for count in (1, 2, 4):
                gpu = H100.times(count)
                room = [held(model, gpu, bits, tokens) for tokens in TOKENS]
                steps = streamed(model, gpu, bits, pace, 1000, 1 + prompt)
                most = computed(model, gpu, pace, 1 + prompt)
                cells = [f"{one:,}" if one else "no room" for one in (*room, steps)]
                cells = cells if room[0] else ["no room"] * 4
                lines += line([f"{model.name}", name, f"{count}x 80 GB", *cells, f"{most:,}"])
    return [*lines, "", *_link_table(pace)]


def _link_table(pace: float) -> list[str]:
    """Sessions whose caches wait in memory, by how often they are read."""
    head = ["model", "KV of a token", "session", *(f"{share:.0%}" for share in SHARES)]
    lines = line(head, head=True)
    for model in (QWEN_32B, QWEN_72B):
        for tokens in TOKENS:
            most = [offloaded(model, H100, pace, tokens, share) for share in SHARES]
            size = f"{model.kv_bytes() / 1024:.0f} KiB"
            cells = [model.name, size, f"{tokens:,} tokens", *(f"{one:,}" for one in most)]
            lines += line(cells)
    return lines


def _measured(rows: Sequence[Row]) -> list[str]:
    p50, p95 = ([row.found.percentile(part) * 1000 for row in rows] for part in (50, 95))
    due = sum(len(row.found.late) for row in rows)
    failed = sum(row.found.failed for row in rows)
    means = [np.mean([pick(row) for row in rows]) for pick in (_computed, _written, _own)]
    computed_ids, written, own = means
    cells = [_spread(p50), _spread(p95), f"{due:,}", f"{failed}"]
    return [*cells, f"{computed_ids:.2f}", f"{written:.0f}", f"{own:.0%} of a core"]


def _computed(row: Row) -> float:
    return row.computed


def _written(row: Row) -> float:
    return row.written


def _own(row: Row) -> float:
    return row.found.own


def _spread(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if len(values) == 1 else f"{low:.0f} to {high:.0f}"


def _ms(seconds: Sequence[float]) -> str:
    return f"{np.percentile(seconds, 95) * 1000:.0f}" if seconds else "-"


def _criterion() -> str:
    return (
        f"Served: at most {LATE:.0%} of what is due (consults; cloud-only: tokens) comes more than "
        f"{LIMIT * 1000:.0f} ms late."
    )
