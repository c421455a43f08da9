"""Rollouts of a cloud model behind any backend: consults side by side."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.completion import Completion
from edgewise.prompts import Prompt
from edgewise_lab.rollouts.base import Continuation, Done, Prefix, ignore

WIDTH = 16
"""Consults in flight; an engine decodes them together."""

DEADLINE = 300.0
"""Seconds that a whole continuation may take."""


class CloudRollouts:
    """Implements `Rollouts` with a session a prefix.

    Raises the `CloudError` of the first failure.
    """

    def __init__(self, cloud: CloudModel, width: int = WIDTH, deadline: float = DEADLINE) -> None:
        self._cloud = cloud
        self._width = width
        self._deadline = deadline

    def close(self) -> None:
        """Sessions end with their consults."""

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        flying: dict[Future[Completion], tuple[int, CloudSession]] = {}
        written: dict[int, Continuation] = {}
        waiting = list(enumerate(prefixes))[::-1]
        try:
            while waiting or flying:
                while waiting and len(flying) < self._width:
                    index, prefix = waiting.pop()
                    session = self._cloud.open(Prompt(prefix.ids))
                    flying[self._ask(session, prefix)] = index, session
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    index, session = flying.pop(future)
                    session.close()
                    completion = future.result()
                    written[index] = Continuation(
                        completion.ids, completion.logprobs, completion.top
                    )
                    done(index, written[index])
        finally:
            for future, (_, session) in flying.items():
                future.cancel()
                session.close()
        return [written[index] for index in range(len(prefixes))]

    def _ask(self, session: CloudSession, prefix: Prefix) -> Future[Completion]:
        return session.ask(prefix.ids, prefix.n, prefix.sampling, self._deadline)
