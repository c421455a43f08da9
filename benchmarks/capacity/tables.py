"""Tables of `benchmarks.capacity`, in Markdown."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.capacity.engines import Room
from benchmarks.capacity.memory import (
    H100,
    QWEN_32B,
    QWEN_72B,
    WEIGHTS,
    Gpu,
    Model,
    Use,
    cloud_only,
    held,
    routed,
    routed_offloaded,
)
from benchmarks.capacity.sessions import LATE, LIMIT, Found, Load
from edgewise_lab.tables import line

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
    head = ["model", "weights", "GPUs", "KV of a token", *(f"{one:,} tokens" for one in TOKENS)]
    lines = line(head, head=True)
    for model, name, bits, count in _cards():
        room = [held(model, H100.times(count), bits, tokens) for tokens in TOKENS]
        cells = [f"{one:,}" if room[0] else "no room" for one in room]
        size = f"{model.kv_bytes() // 1024} KiB"
        lines += line([model.name, name, f"{count}x 80 GB", size, *cells])
    lines.append("")
    offloaded = (f"offloaded, {share:.0%}" for share in SHARES)
    head = ["model", "weights", "GPUs", "tokens", "cloud-only", "routed", *offloaded]
    lines += line(head, head=True)
    for model, name, bits, count in _cards():
        if held(model, H100.times(count), bits, TOKENS[0]):
            for tokens in TOKENS[1:]:
                limits = _limits(model, H100.times(count), bits, Use(tokens, pace, 1 + prompt, 0))
                lines += line([model.name, name, f"{count}x 80 GB", f"{tokens:,}", *limits])
    return lines


def _cards() -> Iterator[tuple[Model, str, float, int]]:
    """Model, weights, their bits and GPUs of the rows."""
    for model in (QWEN_32B, QWEN_72B):
        for name, bits in WEIGHTS.items():
            for count in (1, 2, 4):
                yield model, name, bits, count


def _limits(model: Model, gpu: Gpu, bits: float, use: Use) -> list[str]:
    limits = [cloud_only(model, gpu, bits, use), routed(model, gpu, bits, use)]
    for share in SHARES:
        limits.append(routed_offloaded(model, gpu, bits, use._replace(share=share)))
    return [f"{limit.sessions:,} ({limit.by})" for limit in limits]


def _measured(rows: Sequence[Row]) -> list[str]:
    p50, p95 = ([row.found.percentile(part) * 1000 for row in rows] for part in (50, 95))
    due = sum(len(row.found.late) for row in rows)
    failed = sum(len(row.found.failed) for row in rows)
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
