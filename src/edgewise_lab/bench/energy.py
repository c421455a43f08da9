"""Joules a token, of the edge alone and of the pair, beyond what the machine takes at rest.

A meter counts all that it covers, whoever causes it: nothing else should run. A cloud on the same
machine is counted, one elsewhere is not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

import msgspec

from edgewise.errors import UsageError
from edgewise.loop.decoder import Answer
from edgewise_lab.bench.nvml import INSTALL, nvml
from edgewise_lab.bench.powermetrics import powermetrics
from edgewise_lab.bench.rapl import POWERCAP, rapl

Ask = Callable[[int], Answer]
"""Answers the question of that number."""


class EnergyMeter(Protocol):
    """What counts energy; `name` says of what."""

    name: str

    def joules(self) -> float:
        """Since a moment that stays the same; only differences say anything."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Quantity(msgspec.Struct, frozen=True):
    """Median, lowest and highest of the rounds."""

    median: float
    low: float
    high: float


class SystemEnergy(msgspec.Struct, frozen=True, kw_only=True):
    """What a system took: `joules` a token beyond rest, `watts` with it, `seconds` a token.

    Over all rounds it wrote `tokens`, of which the cloud `cloud_tokens`, in `answers`; so many
    consults failed.
    """

    system: str
    joules: Quantity
    watts: Quantity
    seconds: Quantity
    answers: int
    tokens: int
    cloud_tokens: int
    failed_calls: int


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement: by which `meters`, `idle` watts at rest, in how many `rounds`."""

    meters: tuple[str, ...]
    rounds: int
    idle: Quantity
    systems: tuple[SystemEnergy, ...]


def meters(root: Path = POWERCAP) -> list[EnergyMeter]:
    """Those of this machine; the caller closes them.

    Raises `UsageError` where there is none, or one that is out of reach.
    """
    found: list[EnergyMeter] = []
    try:
        for meter in (rapl(root), nvml(), powermetrics()):
            if meter is not None:
                found.append(meter)
    except UsageError:
        for meter in found:
            meter.close()
        raise
    if not found:
        raise UsageError(
            f"Nothing here counts energy: no RAPL zone in {str(root)!r}, no NVIDIA GPU that NVML "
            "can ask and no powermetrics",
            hint="measure on a machine with a processor or a GPU that does; a virtual machine is "
            f"shown none, and a GPU needs {INSTALL}",
        )
    return found


class _Block(NamedTuple):
    joules: float
    seconds: float
    answers: Sequence[Answer]

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)


class EnergyBench:
    """Systems that answer the same questions in turn, and rest, under the same meters."""

    def __init__(self, counting: Sequence[EnergyMeter], systems: Mapping[str, Ask]) -> None:
        self._meters, self._systems = counting, systems

    def measure(
        self, questions: int, *, seconds: float, rounds: int, done: Callable[[], None]
    ) -> Energy:
        """In each round rest for so many `seconds`, then each system, for as long at least.

        Systems take turns in going first, and a system goes on through the `questions` of the
        block before. `done` is called after each block.
        """
        names = list(self._systems)
        for name in names:
            # Weights and caches are warmed up.
            self._systems[name](0)
        resting: list[_Block] = []
        blocks: dict[str, list[_Block]] = {name: [] for name in names}
        for number in range(rounds):
            resting.append(self._rest(seconds))
            done()
            for name in names[number % len(names) :] + names[: number % len(names)]:
                asked = sum(len(block.answers) for block in blocks[name])
                blocks[name].append(self._block(name, asked, questions, seconds))
                done()
        return Energy(
            meters=tuple(meter.name for meter in self._meters),
            rounds=rounds,
            idle=_quantity([_watts(block) for block in resting]),
            systems=tuple(_system(name, blocks[name], resting) for name in names),
        )

    def _joules(self) -> float:
        return sum(meter.joules() for meter in self._meters)

    def _rest(self, seconds: float) -> _Block:
        begun, joules = time.monotonic(), self._joules()
        time.sleep(seconds)
        return _Block(self._joules() - joules, time.monotonic() - begun, [])

    def _block(self, name: str, asked: int, questions: int, seconds: float) -> _Block:
        begun, joules = time.monotonic(), self._joules()
        answers: list[Answer] = []
        while not answers or time.monotonic() < begun + seconds:
            answers.append(self._systems[name]((asked + len(answers)) % questions))
        return _Block(self._joules() - joules, time.monotonic() - begun, answers)


def _system(name: str, blocks: Sequence[_Block], resting: Sequence[_Block]) -> SystemEnergy:
    pairs = list(zip(blocks, resting, strict=True))
    answers = [answer for block in blocks for answer in block.answers]
    return SystemEnergy(
        system=name,
        joules=_quantity(
            [(one.joules - _watts(rest) * one.seconds) / one.tokens for one, rest in pairs]
        ),
        watts=_quantity([_watts(block) for block in blocks]),
        seconds=_quantity([block.seconds / block.tokens for block in blocks]),
        answers=len(answers),
        tokens=sum(block.tokens for block in blocks),
        cloud_tokens=sum(answer.usage.cloud_tokens for answer in answers),
        failed_calls=sum(answer.usage.failed_calls for answer in answers),
    )


def _watts(block: _Block) -> float:
    return block.joules / block.seconds


def _quantity(values: Sequence[float]) -> Quantity:
    return Quantity(median(values), min(values), max(values))
