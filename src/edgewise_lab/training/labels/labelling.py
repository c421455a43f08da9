"""The values of many texts, made side by side and kept as they come."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise_lab.evaluation.journal import append, read
from edgewise_lab.rollouts.base import Continuation, Prefix, Rollouts
from edgewise_lab.training.labels.base import Case, Label, Rollout, Writer

TOGETHER = 256
"""Texts whose rollouts are collected into one call."""

Values = dict[str, tuple[float, ...]]
"""By question, a value for every token."""


class Labelled(msgspec.Struct, frozen=True):
    """The values of one text; `router` tells that of the pair that wrote its rollouts."""

    question: str
    values: tuple[float, ...]
    router: str = ""


def label_all(
    label: Label,
    cases: Sequence[Case],
    rollouts: Mapping[Writer, Rollouts],
    folder: Path,
    done: Callable[[], None] = lambda: None,
    *,
    router: str = "",
) -> Values:
    """The values of every case; those that `folder` holds are not made again.

    Where a pair writes, `router` is the digest of its router: another one's values are not taken.
    """
    path = _path(label, folder)
    known = _known(path, router)
    for _ in range(len(known)):
        done()
    fresh = [case for case in cases if case.question.id not in known]
    if fresh:
        _try(label, fresh[0].tokenizer, rollouts)
    waiting = iter(fresh)
    while batch := list(islice(waiting, TOGETHER)):
        for case, values in zip(batch, _together(label, batch, rollouts), strict=True):
            line = Labelled(case.question.id, tuple(_checked(label, case, values)), router)
            append(path, line)
            known[line.question] = line.values
            done()
    return known


def kept_values(label: Label, folder: Path) -> Values:
    """The values that `folder` holds, the last ones made."""
    return {line.question: line.values for line in read(_path(label, folder), Labelled)}


def _known(path: Path, router: str) -> Values:
    """Those made with `router`, which are the last ones from now on."""
    lines = read(path, Labelled)
    last = {line.question: line for line in lines}
    known = {line.question: line for line in lines if line.router == router}
    for question, line in known.items():
        if last[question].router != router:
            append(path, line)
    return {question: line.values for question, line in known.items()}


def _path(label: Label, folder: Path) -> Path:
    return folder / f"labels-{label.name}.jsonl"


def _checked(label: Label, case: Case, values: Sequence[float]) -> Sequence[float]:
    if len(values) != len(case.proposed) or not all(0 <= value <= 1 for value in values):
        raise UsageError(
            f"The label {label.name!r} gave {len(values)} values for the {len(case.proposed)} "
            f"tokens of question {case.question.id!r}, or one that is not from 0 to 1",
            hint="repair its class",
        )
    return values


def _try(label: Label, tokenizer: Tokenizer, rollouts: Mapping[Writer, Rollouts]) -> None:
    """The label's trial. Raises `UsageError` where it is not passed."""
    trial = label.trial(tokenizer)
    asks = next(trial, None)
    while asks is not None:
        replies = list(_answered({0: asks}, rollouts)[0])
        try:
            asks = trial.send(replies)
        except StopIteration:
            return


def _together(
    label: Label, cases: Sequence[Case], rollouts: Mapping[Writer, Rollouts]
) -> list[list[float]]:
    """Advance all labellings side by side, their rollouts pooled by writer."""
    found: dict[int, list[float]] = {}
    running = {index: label.of(case) for index, case in enumerate(cases)}
    replies: dict[int, Iterator[Continuation]] = {}
    waiting: dict[int, list[Rollout]] = {}
    while running:
        for index, labelling in list(running.items()):
            try:
                if index in waiting:
                    sent = [next(replies[index]) for _ in waiting[index]]
                    waiting[index] = labelling.send(sent)
                else:
                    waiting[index] = next(labelling)
            except StopIteration as stop:
                found[index] = stop.value
                del running[index]
                waiting.pop(index, None)
        replies = _answered(waiting, rollouts)
    return [found[index] for index in range(len(cases))]


def _answered(
    waiting: Mapping[int, Sequence[Rollout]], rollouts: Mapping[Writer, Rollouts]
) -> dict[int, Iterator[Continuation]]:
    pooled: dict[Writer, list[Prefix]] = {}
    for asks in waiting.values():
        for ask in asks:
            pooled.setdefault(ask.writer, []).append(ask.prefix)
    unnamed = pooled.keys() - rollouts.keys()
    if unnamed:
        raise UsageError(
            f"A label asks for rollouts by the {min(unnamed)}", hint="name it in its writers"
        )
    written = {writer: iter(rollouts[writer].run(asked)) for writer, asked in pooled.items()}
    return {
        index: iter([next(written[ask.writer]) for ask in asks]) for index, asks in waiting.items()
    }
