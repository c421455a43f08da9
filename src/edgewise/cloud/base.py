"""The contract of a cloud model: sessions that are asked for tokens and answer with futures.

A session is given the whole sequence each time, works out itself what the other side lacks, and
says what it sent. So a rewind needs no call, and the device's ids are the truth.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from edgewise.edge.base import EdgeModel, Tokenizer
from edgewise.engines.base import Abilities
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict


class CloudSession(Protocol):
    """One answer's conversation with the cloud model."""

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        """Ask for `n` tokens after `ids`, prompt and answer so far; `sent` is told what travels.

        The future fails with a `CloudError`, `CloudTimeout` after `deadline` seconds.
        """
        ...

    def push(self, ids: Sequence[int]) -> int:
        """Told of the prompt and then after every token; returns how many ids it sends for that.

        What can be sent ahead of a consult is sent here. Best effort, and nothing where it would
        cost the engine a request of its own.
        """
        ...

    def close(self) -> None:
        """Forget the conversation."""
        ...


class CloudModel(Protocol):
    """A large model that writes tokens of the edge's vocabulary."""

    name: str

    def open(self, prompt: Prompt) -> CloudSession:
        """A session about `prompt`; nothing is sent yet."""
        ...

    def check(self, tokenizer: Tokenizer) -> str:
        """Reach the model and prove that it shares `tokenizer`; says how it was proven.

        Raises `VocabularyMismatch` or a `CloudError`.
        """
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...

    @property
    def local(self) -> EdgeModel | None:
        """The weights, where they are in this process."""
        return None

    @property
    def abilities(self) -> Abilities | None:
        """What `check` found the engine able to do; None where no engine is asked directly."""
        return None

    def identity(self) -> str:
        """Tells this model from any other as far as is known here, once it was checked."""
        return self.name
