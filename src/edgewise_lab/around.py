"""A cloud model whose consults go through a function: counted, recorded, or held back."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.prompts import Prompt

Flying = Future[Completion]

How = Callable[[Sequence[int], int, Callable[[], Flying]], Flying]
"""Wraps a consult: from its ids, its number of tokens and its `send` to a future."""


class Around(CloudModel if TYPE_CHECKING else object):
    """Implements `CloudModel` by `cloud`, each of whose consults goes through `how`."""

    # `CloudModel` is no base at run time: its defaults would hide the members of `cloud`.

    def __init__(self, cloud: CloudModel, how: How) -> None:
        self.cloud, self.how, self.name = cloud, how, cloud.name

    def open(self, prompt: Prompt) -> CloudSession:
        return AroundSession(self.cloud.open(prompt), self.how)

    def check(self, tokenizer: Tokenizer) -> str:
        return self.cloud.check(tokenizer)

    def close(self) -> None:
        self.cloud.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cloud, name)


class AroundSession(CloudSession):
    """Implements `CloudSession` by `session`."""

    def __init__(self, session: CloudSession, how: How) -> None:
        self.session, self.how = session, how

    def ask(self, request: ConsultRequest) -> Flying:
        return self.how(request.ids, request.n, lambda: self.session.ask(request))

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return self.session.prefetch(ids, sent)

    def close(self) -> None:
        self.session.close()


def observed(seen: Callable[[int, Completion], None]) -> How:
    """Consults as they are; `seen` gets the length of the prompt and the completion of each."""

    def how(ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        def completed(done: Flying) -> None:
            if not (done.cancelled() or done.exception()):
                seen(len(ids), done.result())

        future = send()
        future.add_done_callback(completed)
        return future

    return how
