"""The edge engine `mlx`."""

from edgewise.edge.mlx.model import MlxModel, open_mlx

__all__ = ["MlxModel", "open_mlx"]
