"""`POST /v1/answers/{id}/unplug`: the edge model alone writes the rest of a running answer."""

import hmac
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from fastapi import APIRouter, Request

from edgewise.cloud.base import CloudModel
from edgewise.cloud.wrapped import WrappedCloud, WrappedSession
from edgewise.completion import Completion, Sent
from edgewise.errors import Withheld
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.server.callers import shown_key
from edgewise.server.errors import ApiError


class RunningAnswers:
    """Those that are written or wait, by id. Use it in the event loop's thread only."""

    def __init__(self) -> None:
        self._cuts: dict[str, tuple[bytes, threading.Event]] = {}

    def add(self, answer: str, cut: threading.Event, request: Request) -> Callable[[], None]:
        """From now on `cut` is set when `answer` is unplugged; returns what ends that."""
        self._cuts[answer] = (_key(request), cut)

        def end() -> None:
            self._cuts.pop(answer, None)

        return end

    def unplug(self, answer: str, request: Request) -> bool:
        """Whether there is such an answer, asked for with the key of this request."""
        key, cut = self._cuts.get(answer, (b"", None))
        if cut is None or not hmac.compare_digest(key, _key(request)):
            return False
        cut.set()
        return True


def routes(running: Sequence[RunningAnswers]) -> APIRouter:
    """The endpoint over the answers of each model."""
    router = APIRouter()

    @router.post("/answers/{answer}/unplug")
    async def unplug(answer: str, request: Request) -> dict[str, str | bool]:  # pyright: ignore[reportUnusedFunction]
        """Cut a running answer off from the cloud: the edge model writes the rest."""
        if not any(one.unplug(answer, request) for one in running):
            message = f"No answer {answer[:60]!r} is being written; it may be over."
            raise ApiError(404, message, code="answer_not_found")
        return {"id": answer, "object": "answer.unplug", "unplugged": True}

    return router


class UnpluggedCloud(WrappedCloud):
    """Implements `CloudModel`: once `cut` is set nothing more is sent."""

    def __init__(self, cloud: CloudModel, cut: threading.Event) -> None:
        super().__init__(cloud)
        self._cut = cut

    def open(self, prompt: Prompt) -> "_UnpluggedSession":
        return _UnpluggedSession(self, prompt, self._cut)


class _UnpluggedSession(WrappedSession):
    def __init__(self, model: UnpluggedCloud, prompt: Prompt, cut: threading.Event) -> None:
        super().__init__(model.cloud.open(prompt))
        self._cut = cut

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        if self._cut.is_set():
            raise Withheld("The client unplugged the cloud.")
        return super().ask(ids, n, sampling, deadline, sent)

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return 0 if self._cut.is_set() else super().push(ids, sent)


def _key(request: Request) -> bytes:
    return shown_key(request).encode("utf-8", "surrogateescape")
