"""Cloud models by name: the built-in ones, and what packages add under `edgewise.cloud`."""

from typing import Protocol

from edgewise.cloud.base import CloudModel
from edgewise.errors import UsageError
from edgewise.registry import Registry

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
        "gateway": "edgewise.cloud.gateway:GatewayCloud",
        "llama-server": "edgewise.cloud.engine:LlamaServer",
        "sglang": "edgewise.cloud.engine:Sglang",
        "vllm": "edgewise.cloud.engine:Vllm",
    },
)


def check_name(engine: str) -> None:
    """Raises `UsageError` for what is neither "auto" nor a name of `CLOUDS`."""
    if engine != AUTO and engine not in CLOUDS:
        raise UsageError(
            f"There is no cloud engine {engine!r}",
            hint=f"known are {', '.join([AUTO, *CLOUDS.names()])}",
            setting="cloud_engine",
        )
