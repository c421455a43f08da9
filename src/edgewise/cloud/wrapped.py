"""A cloud model that stands before another one: whatever it does not change is the other's."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.cloud.bridge.word_boundary import WordBoundaries
from edgewise.completion import Completion, Sent
from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.edge.scoring import Scored
from edgewise.engines.base import Abilities
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling


class WrappedCloud:
    """Implements `CloudModel` by `cloud`. Who inherits from it writes what is to be different."""

    # Not from `CloudModel`: for a member that is missing here its default would answer.

    def __init__(self, cloud: CloudModel) -> None:
        self.cloud = cloud
        self.name, self.proof = cloud.name, cloud.proof

    def open(self, prompt: Prompt) -> CloudSession:
        return self.cloud.open(prompt)

    def check(self, tokenizer: Tokenizer) -> str:
        told = self.cloud.check(tokenizer)
        self.proof = self.cloud.proof
        return told

    def close(self) -> None:
        self.cloud.close()

    @property
    def local(self) -> EdgeModel | None:
        return self.cloud.local

    @property
    def here(self) -> bool:
        return self.cloud.here

    @property
    def abilities(self) -> Abilities | None:
        return self.cloud.abilities

    @property
    def own_tokenizer(self) -> Tokenizer | None:
        return self.cloud.own_tokenizer

    @property
    def boundaries(self) -> WordBoundaries | None:
        return self.cloud.boundaries

    def local_only(self, prompt: Prompt) -> bool:
        return self.cloud.local_only(prompt)

    def scored(
        self, ids: Sequence[int], *, top: int = 1, start: int = 0
    ) -> Generator[Sequence[Scored], None, None]:
        return self.cloud.scored(ids, top=top, start=start)

    def requests(self, n: int) -> tuple[int, int]:
        return self.cloud.requests(n)

    def identity(self) -> str:
        return self.cloud.identity()


class WrappedSession:
    """Implements `CloudSession` by `session`, as `WrappedCloud` does a model."""

    def __init__(self, session: CloudSession) -> None:
        self.session = session

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> "Future[Completion]":
        return self.session.ask(ids, n, sampling, deadline, sent)

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        return self.session.push(ids, sent)

    def close(self) -> None:
        self.session.close()
