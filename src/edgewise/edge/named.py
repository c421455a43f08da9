"""Edge engines by name: how an address becomes a model."""

import sys
from collections.abc import Callable

from edgewise.edge.base import EdgeModel, EdgeOptions
from edgewise.registry import Registry

EDGES: Registry[Callable[[str, EdgeOptions], EdgeModel]] = Registry(
    "edge engine",
    "edgewise.edge",
    {
        "llama-server": "edgewise.edge.llamaserver:open_server",
        "llamacpp": "edgewise.edge.llamacpp:open_gguf",
        "mlx": "edgewise.edge.mlx:open_mlx",
        "onnx": "edgewise.edge.onnx:open_onnx",
        "transformers": "edgewise.edge.transformers:open_folder",
    },
)
"""An engine is called with the model's address as the user wrote it."""


def files_read(engine: str) -> tuple[str, ...]:
    """Ends of the names of a folder's files that an engine reads; its module says so as `READS`."""
    return getattr(sys.modules[EDGES.load(engine).__module__], "READS", ())
