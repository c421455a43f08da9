"""An edge model without a KV cache: every pass reads the whole text again."""

from collections.abc import Sequence
from typing import Any

from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step


class UncachedEdge:
    """Implements `EdgeModel`: `model`, whose sessions keep ids and no cache of them."""

    def __init__(self, model: EdgeModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "_UncachedSession":
        return _UncachedSession(self._model.session(needs, top=top))


class _UncachedSession:
    def __init__(self, session: EdgeSession) -> None:
        self._session = session
        self._ids: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        self._ids = list(ids)
        return 0

    def extend(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def rewind(self, position: int) -> None:
        del self._ids[position:]

    def mark(self, position: int) -> None:
        """There is nothing to go back to."""

    def step(self) -> Step:
        self._forget()
        return self._session.step()

    def steps(self, ids: Sequence[int]) -> Sequence[Step]:
        self._forget()
        steps = self._session.steps(ids)
        self._ids += ids
        return steps

    def _forget(self) -> None:
        """What was computed is only queued again."""
        self._session.rewind(0)
        self._session.open(self._ids)
