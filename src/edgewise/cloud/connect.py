"""The cloud model behind a URL."""

import asyncio

from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.gateway import GatewayCloud
from edgewise.engines.detect import ENGINES, EngineName, found_at


def connect(url: str, *, key: str | None = None, engine: EngineName = "auto") -> CloudModel:
    """The cloud model at `url`. Raises a `CloudError` where no known engine answers there."""
    name = asyncio.run(found_at(url, key=key)) if engine == "auto" else engine
    return (
        GatewayCloud(url, key=key)
        if name == "gateway"
        else EngineCloud(ENGINES[name](url, key=key))
    )
