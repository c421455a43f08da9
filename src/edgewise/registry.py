"""Registries of names that other packages may extend; what a name stands for is loaded when needed.

Each concept (such as "router") has one `Registry`: a table of the built-in names, and an entry
point group through which packages add others. If a registry allows it, a name may also be code:
`module:Class`, or `./file.py:Class`.
"""

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from edgewise.errors import UsageError, reason_of

_T = TypeVar("_T")

_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)


class Registry(Generic[_T]):
    """The names of one concept, such as "router", and the objects they refer to."""

    def __init__(
        self,
        concept: str,
        group: str,
        built_in: Mapping[str, str],
        *,
        wanted: Sequence[str] = (),
        code: bool = False,
    ) -> None:
        """`built_in` maps names to `module:attribute`; `group` is where packages add entry points.

        `concept` is what errors call such an object. If there are `wanted` attributes, every object
        but a built-in one must be a class that has them. With `code`, a name may also be
        `module:Class` or `./file.py:Class`.
        """
        self.concept, self.group = concept, group
        self._built_in, self._wanted, self._code = built_in, wanted, code

    def names(self) -> list[str]:
        """Return all names, sorted. Raises `UsageError` if two objects have the same name."""
        return sorted({*self._built_in, *self._added()})

    def added(self) -> list[str]:
        """Return the names that other packages add, sorted. Raises `UsageError` if one is taken."""
        return sorted(self._added())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self._found(name) is not None or self._is_code(name))

    def spelled(self, name: str) -> str:
        """Return a name as it is registered, whatever its capitals; any other name unchanged."""
        return self._found(name) or name

    def _found(self, name: str) -> str | None:
        if name.lower() in self._built_in:  # without a look at all packages, which takes a while
            return name.lower()
        return next((one for one in self._added() if one.lower() == name.lower()), None)

    def _is_code(self, name: str) -> bool:
        return self._code and is_code(name)

    def load(self, name: str) -> _T:
        """Import and return the object called `name`. Raises `UsageError` if unknown or broken."""
        name = self.spelled(name)
        if name in self._built_in:
            return cast(_T, attribute(self._built_in[name]))
        point, where, how = self._added().get(name), "", "repair the code, or install its package"
        if point is not None:
            where, how = f" from {point.value!r}", "repair or remove the package that adds it"
        elif not self._is_code(name):
            known = f"known are {', '.join(self.names())}"
            raise UsageError(
                f"There is no {self.concept} {name!r}", hint=did_you_mean(name, self.names(), known)
            )
        try:
            loaded = point.load() if point else _from_code(name)
        # Others' code may raise anything, such as for a library that is missing or broken.
        except Exception as error:
            raise UsageError(
                f"The {self.concept} {name!r} cannot be loaded{where} ({_reason(error)})", hint=how
            ) from error
        return self._checked(name, loaded)

    def source(self, name: str) -> str:
        """Return the SHA-256 (hex) of the code file of `name`; "" if built in. Raises as `load`."""
        if self.spelled(name) in self._built_in:
            return ""
        module = sys.modules[cast(Any, self.load(name)).__module__]
        return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()

    def _checked(self, name: str, loaded: object) -> _T:
        missing = [one for one in self._wanted if not hasattr(loaded, one)]
        if missing or (self._wanted and not isinstance(loaded, type)):
            problem = f"it lacks {', '.join(missing)}" if missing else "it is not a class"
            raise UsageError(
                f"{name!r} is not a {self.concept}: {problem}",
                hint=f"a {self.concept} is a class with {', '.join(self._wanted)}",
            )
        return cast(_T, loaded)

    def _added(self) -> dict[str, EntryPoint]:
        points: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            built_in = point.name.lower() in self._built_in
            if built_in or point.name in points:
                other = "a built-in one" if built_in else repr(points[point.name].value)
                raise UsageError(
                    f"The {self.concept} {point.name!r} of {point.value!r} has the name of {other}",
                    hint="rename or remove the package that adds it",
                )
            points[point.name] = point
        return points


def did_you_mean(name: str, known: Sequence[str], hint: str) -> str:
    """Return `hint`, preceded by "did you mean ...?" if a name in `known` is close to `name`."""
    close = get_close_matches(name.lower(), known, 1)
    return f"did you mean {close[0]!r}? If not: {hint}" if close else hint


def attribute(target: str) -> Any:
    """Import and return the object that `module:name` names. Raises what importing it raises."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def is_code(name: str) -> bool:
    """Whether `name` has the form `module:Class` or `file.py:Class`."""
    return code_file(name) is not None or _MODULE.fullmatch(name) is not None


def code_file(name: str) -> str | None:
    """Return the file of a name of the form `file.py:Class`; None for any other name."""
    match = _FILE.fullmatch(name)
    return match["file"] if match else None


def _from_code(target: str) -> object:
    """Return what `module:name` or `file.py:name` names. Raises whatever the code raises."""
    file = _FILE.fullmatch(target)
    return getattr(_executed(Path(file["file"])), file["name"]) if file else attribute(target)


def _executed(path: Path) -> ModuleType:
    """Run a Python file and return its module; an unchanged file is run once in a process."""
    path = path.expanduser().resolve()
    key = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()
    name = f"edgewise_{path.stem}_{key[:16]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        # Before it runs: dataclasses and pickles look their module up.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        # Else the next load would find half a module.
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def imported(engine: str, *names: str) -> list[Any]:
    """Import and return the modules `names`, which an optional engine needs.

    Raises `UsageError` if one is missing; its hint names the extra to install, `edgewise[engine]`.
    """
    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise UsageError(
            f"{engine} needs {error.name or names[0]} ({reason_of(error)})",
            hint=f"pip install 'edgewise[{engine}]'",
        ) from error
