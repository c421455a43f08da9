"""The edge engine `transformers`."""

from edgewise.edge.transformers.model import TransformersModel, open_folder

__all__ = ["TransformersModel", "open_folder"]
