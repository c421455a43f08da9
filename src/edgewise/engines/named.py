"""Engines by name: the built-in ones, and what packages add under `edgewise.engine`."""

import inspect
from collections.abc import Callable

from edgewise.engines.http import HttpEngine
from edgewise.errors import UsageError
from edgewise.registry import Registry

ENGINES: Registry[type[HttpEngine]] = Registry(
    "engine",
    "edgewise.engine",
    {
        "llama-server": "edgewise.engines.llama_server:LlamaServerEngine",
        "sglang": "edgewise.engines.sglang:SglangEngine",
        "vllm": "edgewise.engines.vllm:VllmEngine",
    },
)


def model_for(make: Callable[..., object], name: str, model: str | None) -> dict[str, str]:
    """What tells `make` which model was named; nothing where none was.

    Raises `UsageError` where what is called `name` does not take one.
    """
    if model is None:
        return {}
    try:
        inspect.signature(make).bind("", key=None, model=model)
    except TypeError as error:
        raise UsageError(
            f"The engine {name!r} takes no model by its name",
            hint="leave the model out",
            setting="cloud_model",
        ) from error
    return {"model": model}
