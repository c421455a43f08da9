"""Cloud models by name: the built-in ones, and what packages add under `edgewise.cloud`."""

from typing import Protocol

from edgewise.cloud.base import CloudModel
from edgewise.engines.text_dialects import TEXT_DIALECTS
from edgewise.errors import UsageError
from edgewise.registry import Registry, or_meant

AUTO = "auto"
"""Stands for whatever is found at the URL."""


class CloudFactory(Protocol):
    """Makes the cloud model at `url`, where nothing is sent yet; `key` lets it in.

    `model` is one of those served there; it is given only where one was named, so a factory may
    lack it. Raises `UsageError` for a `url` that is none of its own.
    """

    def __call__(
        self, url: str, *, key: str | None = None, model: str | None = None
    ) -> CloudModel: ...


CLOUDS: Registry[CloudFactory] = Registry(
    "cloud engine",
    "edgewise.cloud",
    {
        "cerebras": "edgewise.cloud.engine:Cerebras",
        "fireworks": "edgewise.cloud.engine:Fireworks",
        "gateway": "edgewise.cloud.gateway:GatewayCloud",
        "llama-server": "edgewise.cloud.engine:LlamaServer",
        "sglang": "edgewise.cloud.engine:Sglang",
        "vllm": "edgewise.cloud.engine:Vllm",
    },
)


def check_name(engine: str) -> None:
    """Raises `UsageError` for what is neither "auto" nor a name of `CLOUDS` or `TEXT_DIALECTS`."""
    if engine != AUTO and engine not in CLOUDS and engine not in TEXT_DIALECTS:
        known = [AUTO, *CLOUDS.names(), *TEXT_DIALECTS]
        raise UsageError(
            f"There is no cloud engine {engine!r}",
            hint=or_meant(engine, known, f"known are {', '.join(known)}"),
            setting="cloud_engine",
        )
