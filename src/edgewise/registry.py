"""Doors for third parties: what a name stands for, loaded when it is first asked for.

Each concept has one registry in its own room: a table of the built-in names, and an entry point
group through which a package adds others.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from edgewise.errors import UsageError

_T = TypeVar("_T")


class Registry(Generic[_T]):
    """What the names of one concept stand for."""

    def __init__(self, concept: str, group: str, built_in: Mapping[str, str]) -> None:
        """`built_in` maps names to `module:attribute`, `group` is the entry points' group."""
        self.concept, self.group = concept, group
        self._built_in = built_in

    def names(self) -> list[str]:
        """Every name, sorted. Raises `UsageError` for two of one name."""
        return sorted({*self._built_in, *self._added()})

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._added()

    def load(self, name: str) -> _T:
        """What `name` stands for. Raises `UsageError` where that is nothing or cannot be loaded."""
        added = self._added()
        if name in self._built_in:
            return cast(_T, attribute(self._built_in[name]))
        if name not in added:
            raise UsageError(
                f"There is no {self.concept} {name!r}", hint=f"known are {', '.join(self.names())}"
            )
        target = added[name].value
        try:
            return cast(_T, added[name].load())
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"The {self.concept} {name!r} cannot be loaded from {target!r} ({error})",
                hint="repair or remove the package that adds it",
            ) from error

    def _added(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            if point.name in self._built_in or point.name in found:
                other = (
                    "a built-in one" if point.name in self._built_in else found[point.name].value
                )
                raise UsageError(
                    f"The {self.concept} {point.name!r} of {point.value!r} has the name of {other}",
                    hint="rename or remove the package that adds it",
                )
            found[point.name] = point
        return found


def attribute(target: str) -> Any:
    """What `module:name` names. Raises what importing it raises."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
