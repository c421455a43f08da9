"""The cloud model behind a URL."""

import asyncio

from edgewise.cloud.base import CloudModel
from edgewise.cloud.named import CLOUDS
from edgewise.engines.detect import AUTO, found_at
from edgewise.errors import UsageError


def connect(url: str, *, key: str | None = None, engine: str = AUTO) -> CloudModel:
    """The cloud model at `url`, by a name of `CLOUDS` or, with "auto", as it says itself.

    Raises `UsageError` for another name, a `CloudError` where "auto" finds none that is known.
    """
    check_name(engine)
    name = asyncio.run(found_at(url, key=key)) if engine == AUTO else engine
    return CLOUDS.load(name)(url, key=key)


def check_name(engine: str) -> None:
    """Raises `UsageError` for what is neither "auto" nor a name of `CLOUDS`."""
    if engine != AUTO and engine not in CLOUDS:
        raise UsageError(
            f"There is no cloud engine {engine!r}",
            hint=f"known are {', '.join([AUTO, *CLOUDS.names()])}",
            setting="cloud_engine",
        )
