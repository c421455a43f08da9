"""A cloud model whose consults (requests to it) go through a function of the caller's."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.completion import Completion, Outgoing, Recorder
from edgewise.edge.base import Tokenizer
from edgewise.prompts import Prompt

Flying = Future[Completion]

Intercept = Callable[[Sequence[int], int, Callable[[], Flying]], Flying]
"""Gets a consult's ids, its number of tokens and what sends it; returns its future."""


class WrappedCloud(CloudModel if TYPE_CHECKING else object):
    """A `CloudModel` like `cloud`, but each consult is sent by `intercept`(ids, tokens, send)."""

    # `CloudModel` is no base at run time: its defaults would hide the members of `cloud`.

    def __init__(self, cloud: CloudModel, intercept: Intercept) -> None:
        self.cloud, self.intercept, self.name = cloud, intercept, cloud.name

    def open(self, prompt: Prompt) -> CloudSession:
        return WrappedSession(self.cloud.open(prompt), self.intercept)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        return self.cloud.check_vocabulary(tokenizer)

    def close(self) -> None:
        self.cloud.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cloud, name)


class WrappedSession(CloudSession):
    def __init__(self, session: CloudSession, intercept: Intercept) -> None:
        self.session, self.intercept = session, intercept

    def ask(self, request: ConsultRequest) -> Flying:
        return self.intercept(request.ids, request.n, lambda: self.session.ask(request))

    def prefetch(self, ids: Sequence[int], record: Recorder = Outgoing) -> Future[None] | None:
        return self.session.prefetch(ids, record)

    def close(self) -> None:
        self.session.close()


def observed(seen: Callable[[int, Completion], None]) -> Intercept:
    """Return an `Intercept` that gives `seen`, in any thread, a consult's id count and reply."""

    def intercept(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        def completed(done: Flying) -> None:
            if not (done.cancelled() or done.exception()):
                seen(len(ids), done.result())

        future = send()
        future.add_done_callback(completed)
        return future

    return intercept
