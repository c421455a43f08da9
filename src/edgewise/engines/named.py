"""Engines by name: the built-in ones, and what packages add under `edgewise.engine`."""

from edgewise.engines.http import HttpEngine
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
