"""A cloud model whose consults go through a function: counted, recorded, or held back."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.completion import Completion, Sent
from edgewise.edge.base import Tokenizer
from edgewise.prompts import Prompt

Flying = Future[Completion]

How = Callable[[Sequence[int], int, Callable[[], Flying]], Flying]
"""From a consult's ids and number of tokens, and what sends it, to the future that is returned."""


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

    def ask(self, ids: Sequence[int], n: int, *more: Any, **named: Any) -> Flying:
        return self.how(ids, n, lambda: self.session.ask(ids, n, *more, **named))

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return self.session.prefetch(ids, sent)

    def close(self) -> None:
        self.session.close()
