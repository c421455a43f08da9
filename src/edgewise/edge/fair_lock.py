"""A lock that serves threads in the order in which they came."""

import threading
from collections import deque


class FairLock:
    """`with lock:`; not reentrant.

    A `threading.Lock` goes to whoever asks first after its release, which is mostly the thread that
    just released it: one session would decode on and on while the others wait.
    """

    def __init__(self) -> None:
        self._waiting: deque[threading.Lock] = deque()
        self._inner = threading.Lock()
        self._taken = False

    def __enter__(self) -> None:
        with self._inner:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:
            with self._inner:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:  # it was handed over already
                    self._hand_on()
            raise

    def __exit__(self, *_: object) -> None:
        with self._inner:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._taken = False
