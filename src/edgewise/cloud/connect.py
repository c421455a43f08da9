"""The cloud model behind a URL."""

import asyncio

from edgewise.cloud.base import CloudModel
from edgewise.cloud.named import AUTO, CLOUDS, check_name
from edgewise.engines.detect import found_at
from edgewise.engines.named import model_for


def connect(
    url: str, *, key: str | None = None, engine: str = AUTO, model: str | None = None
) -> CloudModel:
    """The cloud model at `url`, by a name of `CLOUDS` or, with "auto", as it says itself.

    Of several models there, `model` names one. Raises `UsageError` for another engine's name, or a
    model's where that engine takes none; a `CloudError` where "auto" finds none that is known.
    """
    check_name(engine)
    name = asyncio.run(found_at(url, key=key, model=model)) if engine == AUTO else engine
    make = CLOUDS.load(name)
    return make(url, key=key, **model_for(make, name, model))
