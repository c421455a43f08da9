"""Which of a repository's GGUF files are models, and which of them a name stands for."""

import re
from collections.abc import Iterable, Sequence

_PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q5_K_M", "Q8_0")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NO_MODEL = re.compile(r"(?i)mmproj|imatrix")


def models_among(names: Iterable[str]) -> list[str]:
    """By name, without projectors and importance matrices; of a split model its first part."""
    found = sorted(name for name in names if not _NO_MODEL.search(name))
    return [name for name in found if (part := _PART.search(name)) is None or int(part[1]) == 1]


def of_quant(models: Sequence[str], quant: str) -> str | None:
    """The first model of a quantisation; None where there is none."""
    named = re.compile(rf"(?i)(?:^|[.\-_/]){re.escape(quant)}(?:[.\-/]|$)")
    return next((name for name in models if named.search(name)), None)


def preferred(models: Sequence[str]) -> str:
    """The first of the most usual quantisation that there is, else the first of all."""
    return next((name for quant in _PREFERRED if (name := of_quant(models, quant))), models[0])


def parts_of(name: str) -> list[str]:
    """The files of a split model that `name` is the first of; any other name alone."""
    match = _PART.search(name)
    if not match:
        return [name]
    count = int(match[2])
    stem = name[: match.start()]
    return [f"{stem}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
