"""Terminal output: answers and data on stdout, everything else on stderr."""

import signal
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import FrameType
from typing import get_args

from rich.console import Console
from rich.live import Live
from rich.progress import MofNCompleteColumn, Progress, TaskID
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from edgewise.errors import Fault
from edgewise.events import AnswerCost, Consult, Event, Finished, Timing, Token, Usage
from edgewise.loop.generation import Generation
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.settings import Settings

# Without NO_COLOR's colours bold and underline stay. What models and files say is text, whatever
# brackets it has.
out = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
err = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

# A table for a file or a pipe is not wrapped as for a terminal.
_WIDEST = 10_000

PATIENCE, LONG_READING = 1.0, 5.0
"""Seconds of prefill after which a line says so, and after which a note warns that the cloud
model must read the same prompt too."""

_DIM = Style(dim=True)

CLOUD = Style(color="red", bold=True, underline=True)
"""Style of the cloud model's tokens; bold and underlined, so that it shows without colour too."""


# They reorder what is shown around them, so that text could pose as other text.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Return `text` without control characters other than tabs and line feeds.

    Lone surrogates, and characters that would reorder the text around them, are removed too.
    """
    # A model's output must not drive the terminal.
    return "".join(
        c
        for c in text
        if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cs") and c not in _REORDERING)
    )


def watched(events: Generation, pair: Pair) -> tuple[list[Token], Finished | None]:
    """Print an answer as it is decoded; return its tokens and its last event.

    The event is None if Ctrl-C cut the answer. A second Ctrl-C raises `KeyboardInterrupt`.
    """
    tokens: list[Token] = []
    end: Finished | None = None
    with _interruptible() as interrupted:
        for event in painted(_begun(events, pair)):
            if isinstance(event, Finished):
                end = event
            elif isinstance(event, Token):
                tokens.append(event)
            if interrupted():
                break
    return tokens, end


def _begun(events: Generation, pair: Pair) -> Iterator[Event]:
    """Yield `events` unchanged; on a terminal, show the progress of a prefill over a second."""
    _, kept, tokens = events.reading
    line = Live(get_renderable=lambda: _reading(events), console=err, transient=True)
    timer = threading.Timer(PATIENCE, line.start)
    with ExitStack() as shown:
        if err.is_terminal:
            timer.start()
            # Called from the last: a line that the timer is just starting is stopped after it.
            for ends in (line.stop, timer.join, timer.cancel):
                shown.callback(ends)
        for event in events:
            if isinstance(event, Token):
                shown.close()
                if err.is_terminal and event.index == 0 and event.source == "edge":
                    _warn_of_reading(pair, tokens - kept, event)
            yield event


def _reading(events: Generation) -> Text:
    by, done, tokens = events.reading
    if by == "cloud":
        return Text(f"waiting for the cloud, which reads {tokens:,} tokens first", _DIM)
    part = f", {min(1.0, done / tokens):.0%}" if done else ""
    return Text(f"reading {tokens:,} tokens{part}", _DIM)


def _warn_of_reading(pair: Pair, tokens: int, first: Token) -> None:
    """Note, after a long prefill, that a cloud in this process has to prefill the same prompt."""
    cloud, took = pair.cloud, first.seconds - first.wait
    read = first.threshold is None or first.ratio is not None
    if cloud is None or not cloud.here or read or took < LONG_READING:
        return
    large, small = cloud.local.parameters if cloud.local else None, pair.edge.parameters
    about = f", about {took * large / small:.0f} s" if large and small else ""
    note(f"where the cloud is first asked it reads these {tokens:,} tokens, too{about}")


@contextmanager
def _interruptible() -> Generator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; the second Ctrl-C raises."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        # No decoding step can be left half done.
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def painted(events: Iterable[Event]) -> Iterator[Event]:
    """Yield `events`; print their text, the cloud's in colour, and then why a consult failed."""
    problem: str | None = None
    for event in events:
        if isinstance(event, Token):
            _write(event.text, CLOUD if event.source == "cloud" else Style())
        elif isinstance(event, Finished):
            _write(event.text + "\n", Style())
            if problem and event.usage.alone:
                warn(f"every consult failed, so the edge model wrote the whole answer: {problem}")
            elif problem:
                note(f"a consult failed, so the edge model continued: {problem}")
        elif isinstance(event, Consult):
            problem = problem or event.message
        yield event


def _write(text: str, style: Style) -> None:
    # As a segment: rich's Text would turn tabs into spaces.
    out.print(Segments([Segment(printable(text), style)]), end="")
    out.file.flush()


def note(text: str) -> None:
    """Print a dim line on stderr."""
    err.print(Text(printable(text), _DIM))


def warn(text: str) -> None:
    """Print a warning in yellow on stderr."""
    err.print(Text(f"Warning: {printable(text)}", Style(color="yellow")))


def warn_of_toy(edge: str, prompt: str) -> None:
    """Warn if `edge` is the bundled toy model and `prompt` is unlike those it was trained on."""
    taught = prompt.startswith("Question: ") and prompt.rstrip().endswith("Answer and Reasoning:")
    if edge == Settings().edge and not taught:
        warn(
            "the bundled pair can only answer questions worded as those of `edgewise demo`. For "
            "real questions: edgewise chat --edge smollm2"
        )


def reads(policy: Policy, escalate: float | None) -> str:
    """Return the task of a cloud that verifies passages, as "to ..."; `escalate`: the setting."""
    percent, whole = 100 * (policy.cloud_share or 0.0), escalate if policy.asks else None
    if percent == 100 or whole == 1:
        return "to write every answer whole"
    told = f"to check passages and rewrite their sentences, for up to {percent:g}% of the tokens"
    return f"{told}, and to write {100 * whole:g}% of the answers whole" if whole else told


def note_of_reading(pair: Pair) -> None:
    """Print a note of what the cloud model is to do, if it verifies passages."""
    if pair.cloud is not None and pair.cloud.reads_passages:
        note(f"{pair.cloud.name} is asked {reads(pair.policy, pair.settings.escalate)}")


def summary(answer: Finished, tokens: Sequence[Token], pair: Pair) -> str:
    """Return the line to print below an answer: each model's tokens, time, cloud share, cost."""
    cloud, share = pair.cloud, pair.policy.cloud_share
    usage, seconds = answer.usage, answer.timing.total
    total, by_cloud = usage.edge_tokens + usage.cloud_tokens, usage.cloud_tokens
    # A conversation that stays here has routed tokens.
    verified = pair.policy.verifies and any(one.reason != "below_threshold" for one in tokens)
    if cloud is not None:
        wrote = f"{usage.edge_tokens} edge + {by_cloud} cloud tokens"
        parts = [
            _verified(usage, tokens, cloud.name, share) if verified else wrote,
            f"{seconds:.{1 if seconds >= 1 else 2}f} s",
        ]
    else:
        parts = [f"{total} tokens", f"{total / seconds:.0f} tokens/s"]
    if answer.finish_reason == "length":
        why = ", since the answer repeats itself" if usage.repeats else ""
        parts.append(f"cut at {total} tokens{why}")
    if cloud is not None and not verified and share is not None and 0 < share < 1:
        parts.append(_used(usage.cloud_share, share, tokens))
    if usage.cost:
        parts.append(costed(usage.cost))
    return " · ".join(parts)


# Why a consult that the router wanted was not made, by `Token.reason`.
_HELD_BACK = {
    "circuit_open": "consults are paused after failures",
    "budget": "earlier answers used it",
    "cap": "the answer's cap is spent",
    "cost": "more would cost more than the cloud alone, or than a limit",
    "blocked": "what would be sent may not leave this device",
    "mid_word": "the cloud is asked between words only",
    "reasoning": "the cloud cannot go on inside a block of reasoning",
}


def _verified(usage: Usage, tokens: Sequence[Token], cloud: str, share: float | None) -> str:
    """Return what verification did: corrections, the least sure token, what was not verified."""
    corrected = sum(token.reason == "corrected" for token in tokens)
    used = "" if share is None else f" ({_of_share(usage.cloud_share, share)})"
    what = f"{corrected} of {len(tokens)} tokens corrected"
    if usage.escalated:
        what = "the whole answer is the cloud's, as the edge was unsure"
    elif usage.cloud_tokens > corrected:
        many = f"{corrected} sentence{'s' * (corrected != 1)}"
        what = f"{many}, {usage.cloud_tokens} of {len(tokens)} tokens, rewritten"
    told = f"verified by {cloud}: {what}{used}"
    if usage.lowest_ratio is not None and usage.lowest_ratio < 0.995:
        told += f"; least sure: token {usage.lowest_at}, {usage.lowest_ratio:.2g} of its likeliest"
    unread = (one for one in tokens if one.source == "edge" and one.ratio is None)
    left = Counter(one.reason for one in unread if one.reason not in ("forced", "verified"))
    for reason, count in left.most_common():
        told += f"; {count} not verified: {_HELD_BACK.get(reason, reason)}"
    return told


def _of_share(used: float, share: float) -> str:
    if used > share:
        return f"cloud share {used:.1%}: {100 * share:g}% are allowed over all answers"
    return f"used {used:.1%} of the {100 * share:g}% allowed"


def _used(used: float, share: float, tokens: Sequence[Token]) -> str:
    """Return what was used of the cloud share, with wasted tokens; and if little, why."""
    told = _of_share(used, share)
    if used >= share / 2:
        return told
    held = Counter(
        token.reason
        for token in tokens
        if token.reason in _HELD_BACK or token.reason in get_args(Fault)
    )
    if not held:
        return f"{told}: the router found no more places"
    reason = held.most_common(1)[0][0]
    return f"{told}: {_HELD_BACK.get(reason, f'consults failed ({reason})')}"


def statistics(usage: Usage, timing: Timing) -> str:
    """Return the line that `--stats` prints about an answer.

    It tells the cloud share, wasted tokens, corrections, consults, tokens that the cloud read and
    wrote, time to the first token, and tokens per second.
    """
    total = usage.edge_tokens + usage.cloud_tokens
    parts = [
        f"cloud share {usage.cloud_share:.1%} with {usage.wasted_tokens} wasted",
        f"{usage.correction_tokens} corrections",
        f"{usage.cloud_calls} consults, {usage.failed_calls} failed",
        f"cloud prompt {metered(usage.cloud_prompt_computed)} computed, "
        f"{metered(usage.cloud_prompt_cached)} cached",
        f"{usage.cloud_completion_tokens} written by the cloud",
        *(f"{t.cloud}: wanted {t.wanted}, calls {t.calls}, wrote {t.wrote}" for t in usage.tiers),
        f"first token after {timing.ttft:.2f} s, {total / timing.total:.1f} tokens/s",
    ]
    return "; ".join(parts)


def costed(cost: AnswerCost) -> str:
    """Return what answers cost, and saved over the cloud alone: "paid 0.1, saved 0.3 USD (75%)"."""
    kept = "lost" if cost.saved < 0 else "saved"
    part = f" ({abs(cost.saved) / cost.alone:.0%})" if cost.alone else ""
    about = "about " if cost.estimated else ""
    paid = f"paid {about}{money(cost.paid)}, {kept} {about}{money(abs(cost.saved))}"
    return f"{paid} {printable(cost.currency)}".rstrip() + part


def money(amount: float) -> str:
    """Format an amount of money: two decimals from 100 on, else up to six."""
    return f"{amount:.2f}" if amount >= 100 else f"{amount:.6f}".rstrip("0").rstrip(".")


def metered(count: float | None, form: str = "") -> str:
    """Format an engine's count with the format spec `form`; "-" for None: it reported none."""
    return "-" if count is None else f"{count:{form}}"


def progress(*, hidden: bool = False, every: float = 60.0) -> Progress:
    """Return rich's progress bar, on stderr; `with` shows it. With `hidden` nothing is shown.

    If stderr is no terminal, a line of text at most every `every` seconds stands for the bar.
    """
    if hidden or err.is_terminal:
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        return Progress(*columns, console=err, transient=True, disable=hidden)
    return _ProgressLines(every)


class _ProgressLines(Progress):
    """Prints lines with the progress and the estimated time left, instead of a bar."""

    def __init__(self, every: float) -> None:
        super().__init__(console=err, disable=True)
        self._every = every
        self._last = self.get_time()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        if self.get_time() - self._last < self._every:
            return
        self._last = self.get_time()
        task = self.tasks[self.task_ids.index(task_id)]
        line = f"{task.description}: {task.completed:.0f}"
        if task.total:
            line += f" of {task.total:.0f}"
        if task.time_remaining is not None:
            line += f", about {timedelta(seconds=task.time_remaining)} left"
        note(line)


def show(table: Table) -> None:
    """Print a table on stdout; its cells are wrapped to fit a terminal, but not a pipe or file."""
    out.print()
    if out.is_terminal:
        for column in table.columns:
            column.overflow, column.no_wrap = "fold", False
        out.print(table, soft_wrap=False)
        return
    wide = Console(width=_WIDEST, color_system=None, markup=False, emoji=False)
    with wide.capture() as drawn:
        wide.print(table)
    out.file.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))
