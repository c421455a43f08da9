"""Ctrl-C in the middle of an answer."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType

from edgewise.events import Event


def until(interrupted: Callable[[], bool], events: Iterator[Event]) -> Iterator[Event]:
    """The events before it."""
    for event in events:
        yield event
        if interrupted():
            return


@contextmanager
def interruptible() -> Generator[Callable[[], bool]]:
    """The first Ctrl-C lets a step end, as no decode can be left half done; the next one raises."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
