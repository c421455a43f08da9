"""One budget for many answers: a server's, over its life, whoever asks and however many at once."""

import threading

from msgspec.structs import replace

from edgewise.loop.policy import MAX_CREDIT, MAX_LOG_ODDS, Budget


class Account:
    """Answers take what credit there is and give back what they leave; any thread may call.

    An answer that begins while another holds the credit starts without, and earns its own. So the
    cloud's tokens over all answers, used and wasted, stay within share x output tokens + the one
    initial credit, but for what answers have wasted since and the next ones will pay for.
    """

    def __init__(self) -> None:
        self._free = Budget()
        self._lock = threading.Lock()

    def take(self) -> Budget:
        """The budget that an answer starts with: all of the credit, or the debt."""
        with self._lock:
            taken, self._free = self._free, replace(self._free, credit=0.0)
            return taken

    def settle(self, taken: Budget, left: Budget) -> None:
        """After an answer that started with `taken` and left `left` (`Generation.budget`)."""
        with self._lock:
            shift = self._free.shift + left.shift - taken.shift
            self._free = Budget(
                credit=min(self._free.credit + left.credit, MAX_CREDIT),
                shift=max(-MAX_LOG_ODDS, min(shift, MAX_LOG_ODDS)),
            )
