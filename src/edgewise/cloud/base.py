"""The contract of a cloud model: sessions that are asked for tokens and answer with futures.

Every call states the position at which its ids start; whatever stood after it is gone. So a
rewind costs nothing on the wire, and the device's ids are the truth.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from edgewise.edge.base import Tokenizer
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict


class CloudSession(Protocol):
    """One answer's conversation with the cloud model."""

    pushes: bool
    """Whether `warm` sends new ids alone and costs no request, so that it is worth doing always."""

    def ask(
        self, position: int, new_ids: Sequence[int], n: int, sampling: Sampling, deadline: float
    ) -> Future[Verdict]:
        """Ask for `n` tokens after `new_ids`, which start at `position`.

        The future fails with a `CloudError`, `CloudTimeout` after `deadline` seconds.
        """
        ...

    def warm(self, position: int, new_ids: Sequence[int]) -> None:
        """Tell the engine about ids before they are needed. Best effort."""
        ...

    def close(self) -> None:
        """Forget the conversation."""
        ...


class CloudModel(Protocol):
    """A large model that takes and returns token ids."""

    name: str

    def open(self, ids: Sequence[int]) -> CloudSession:
        """A session about the prompt `ids`; nothing is sent yet."""
        ...

    def check(self, tokenizer: Tokenizer) -> str:
        """Reach the model and prove that it shares `tokenizer`; says how it was proven.

        Raises `VocabularyMismatch` or a `CloudError`.
        """
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...


class Prefix:
    """The ids a session knows, kept by the rule of positions."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def put(self, position: int, new_ids: Sequence[int]) -> list[int]:
        """Replace everything from `position` on by `new_ids`; returns a copy of the whole."""
        if not 0 <= position <= len(self.ids):
            raise ValueError(f"position {position} lies beyond the {len(self.ids)} known ids")
        self.ids[position:] = new_ids
        return self.ids.copy()
