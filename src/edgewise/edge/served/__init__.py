"""The edge engine `server`: a model that a server at a URL already runs."""

from edgewise.edge.served.model import ServedEdge, open_server

__all__ = ["ServedEdge", "open_server"]
