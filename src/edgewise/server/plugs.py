"""`POST /v1/answers/{id}/unplug` and `/plug`: an answer that is being written, and the cloud."""

import hmac
from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request

from edgewise.loop.plug import Plug
from edgewise.server.errors import ApiError
from edgewise.server.schemas import PlugReply


class Plugs:
    """Those of the answers that are being written or wait; in the event loop's thread only.

    An answer is known to those alone who ask with the key that it was asked for with.
    """

    def __init__(self) -> None:
        self._plugs: dict[str, tuple[bytes, Plug]] = {}

    def add(self, answer: str, plug: Plug, request: Request) -> Callable[[], None]:
        """From now on `answer` has this plug; returns what ends that."""
        self._plugs[answer] = (_key(request), plug)

        def end() -> None:
            del self._plugs[answer]

        return end

    def find(self, answer: str, request: Request) -> Plug | None:
        """The plug of an answer, for who asked for it."""
        key, plug = self._plugs.get(answer, (b"", None))
        return plug if hmac.compare_digest(key, _key(request)) else None


def routes(plugs: Sequence[Plugs]) -> APIRouter:
    """The endpoints over the plugs of each model."""
    router = APIRouter()

    def of(answer: str, request: Request) -> Plug:
        found = filter(None, (one.find(answer, request) for one in plugs))
        if (plug := next(found, None)) is None:
            raise ApiError(
                404,
                f"No answer {answer[:60]!r} is being written; it may be over.",
                code="answer_not_found",
            )
        return plug

    @router.post("/answers/{answer}/unplug")
    async def unplug(answer: str, request: Request) -> PlugReply:  # pyright: ignore[reportUnusedFunction]
        """Cut a running answer off from the cloud: the edge goes on alone."""
        of(answer, request).unplug()
        return PlugReply(id=answer, plugged=False)

    @router.post("/answers/{answer}/plug")
    async def plug(answer: str, request: Request) -> PlugReply:  # pyright: ignore[reportUnusedFunction]
        """Let it reach the cloud again; its consults resume when one of them succeeds."""
        of(answer, request).plug()
        return PlugReply(id=answer, plugged=True)

    return router


def _key(request: Request) -> bytes:
    """What a request says who asks, in either of the headers that clients use."""
    given = request.headers.get("authorization", "").partition(" ")[2]
    return (given or request.headers.get("x-api-key", "")).encode("utf-8", "surrogateescape")
