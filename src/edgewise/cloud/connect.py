"""The cloud model behind a URL."""

import asyncio

from edgewise.cloud.base import CloudModel
from edgewise.cloud.named import AUTO, CLOUDS, check_name
from edgewise.engines.detect import found_at


def connect(url: str, *, key: str | None = None, engine: str = AUTO) -> CloudModel:
    """The cloud model at `url`, by a name of `CLOUDS` or, with "auto", as it says itself.

    Raises `UsageError` for another name, a `CloudError` where "auto" finds none that is known.
    """
    check_name(engine)
    name = asyncio.run(found_at(url, key=key)) if engine == AUTO else engine
    return CLOUDS.load(name)(url, key=key)
