"""The edge engine `llama-server`: a model that a llama-server on this machine already runs."""

from edgewise.edge.llamaserver.model import ServedEdge, open_server

__all__ = ["ServedEdge", "open_server"]
